//! Class names to numbers. Rule: a name that is not listed is rejected; only surrounding white
//! space is ignored, case is not.

use std::collections::BTreeMap;

use forebay_error::Result;

use crate::number::cut;
use crate::record::bad;

/// Returns the number of the class named by `text`, a JSON value or plain text.
pub(crate) fn class(text: &str, is_json: bool, classes: &BTreeMap<String, i64>) -> Result<i64> {
    let parsed: String;
    let name = if is_json {
        parsed = serde_json::from_str(text)
            .map_err(|_| bad("the JSON has no text here").at("value", cut(text)))?;
        parsed.as_str()
    } else {
        text
    };
    classes.get(name).copied().ok_or_else(|| {
        bad("the name is not one of the classes")
            .at("value", cut(name))
            .advise("add it to classes=, or leave such samples out with on_error=\"skip\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_name_maps_to_its_number_and_others_are_rejected() {
        let classes = [("cat".to_owned(), 3), ("großer Hund".to_owned(), -1)].into();
        assert_eq!(class("cat", false, &classes).unwrap(), 3);
        assert_eq!(class("\"gro\\u00dfer Hund\"", true, &classes).unwrap(), -1);
        for (text, is_json, named) in
            [("Cat", false, "Cat"), ("\"cat\"", false, "cat"), ("", false, ""), ("7", true, "7")]
        {
            let error = class(text, is_json, &classes).unwrap_err();
            assert!(error.place("value").unwrap().contains(named), "{error}");
        }
        let long = "x".repeat(1000);
        assert!(class(&long, false, &classes).unwrap_err().to_string().len() < 300);
    }
}
