//! From a filter's text to conditions.

use forebay_error::{Error, ErrorKind, Result};
use winnow::ascii::{Caseless, multispace0};
use winnow::combinator::{alt, cut_err, eof, fail, not, opt, peek, repeat, separated, terminated};
use winnow::error::{ContextError, ErrMode, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::stream::LocatingSlice;
use winnow::token::{literal, one_of, take_till, take_while};

use super::condition::{Comparison, Condition, Literal, Operator, Test};
use super::{NESTING_MAX, TEXT_MAX};

type Input<'a> = LocatingSlice<&'a str>;

/// Words that are no columns.
const WORDS: [&str; 9] = ["and", "or", "not", "in", "between", "is", "null", "true", "false"];

/// Reads a filter.
///
/// # Errors
/// `Invalid` with the position of the first character that cannot be, from 1, and what may be
/// there.
pub(super) fn parse(text: &str) -> Result<Condition> {
    let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
    if text.len() > TEXT_MAX {
        return invalid("a filter is too long").map_err(|e: Error| e.at("limit", TEXT_MAX));
    }
    if nesting(text) > NESTING_MAX {
        let what = "a filter nests too many parentheses";
        return invalid(what).map_err(|e: Error| e.at("limit", NESTING_MAX));
    }
    let parsed = filter.parse(LocatingSlice::new(text));
    parsed.map_err(|error| {
        let offset = error.offset();
        let expected = error.inner().context().filter_map(|context| match context {
            StrContext::Expected(value) => Some(value.to_string()),
            _ => None,
        });
        let mut expected: Vec<String> = expected.collect();
        expected.dedup();
        let expected = match expected.is_empty() {
            true => "something else".to_owned(),
            false => expected.join(" or "),
        };
        let rest = text.get(offset..).unwrap_or_default();
        let found = rest.split_whitespace().next().unwrap_or("the end");
        Error::new(ErrorKind::Invalid, format!("a filter cannot be read: expected {expected}"))
            .at("where", text)
            .at("position", position(text, offset))
            .at("found", found)
            .advise("write, for example, width >= 512 and lang in ('de', 'en')")
    })
}

/// Returns the number of the character at byte `offset`, from 1.
pub(super) fn position(text: &str, offset: usize) -> usize {
    text.char_indices().take_while(|(at, _)| *at < offset).count() + 1
}

/// Returns the deepest nesting of parentheses, or more: those in texts count.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

fn filter(input: &mut Input<'_>) -> ModalResult<Condition> {
    multispace0.parse_next(input)?;
    let condition = either.parse_next(input)?;
    cut_err(eof).context(expected("`and`, `or` or the end")).parse_next(input)?;
    Ok(condition)
}

/// Conditions of which one is to hold.
fn either(input: &mut Input<'_>) -> ModalResult<Condition> {
    let mut conditions = vec![both.parse_next(input)?];
    while opt(word("or")).parse_next(input)?.is_some() {
        conditions.push(cut_err(both).parse_next(input)?);
    }
    Ok(one_or(conditions, Condition::Any))
}

/// Conditions that are all to hold.
fn both(input: &mut Input<'_>) -> ModalResult<Condition> {
    let mut conditions = vec![negated.parse_next(input)?];
    while opt(word("and")).parse_next(input)?.is_some() {
        conditions.push(cut_err(negated).parse_next(input)?);
    }
    Ok(one_or(conditions, Condition::All))
}

fn one_or(mut conditions: Vec<Condition>, all: fn(Vec<Condition>) -> Condition) -> Condition {
    match conditions.len() {
        1 => conditions.remove(0),
        _ => all(conditions),
    }
}

fn negated(input: &mut Input<'_>) -> ModalResult<Condition> {
    // Counted, not nested: a text of a thousand `not` must not use up the stack.
    let nots: usize = repeat(0.., word("not")).parse_next(input)?;
    let condition = match opt(symbol("(")).parse_next(input)? {
        Some(_) => {
            let inner = cut_err(either).parse_next(input)?;
            cut_err(symbol(")")).context(expected("`and`, `or` or `)`")).parse_next(input)?;
            inner
        }
        None => test.parse_next(input)?,
    };
    Ok(if nots % 2 == 1 { Condition::Not(Box::new(condition)) } else { condition })
}

/// A column and what is asked of it.
fn test(input: &mut Input<'_>) -> ModalResult<Condition> {
    let (column, span) = terminated(column.with_span(), multispace0)
        .context(expected("a column, `not` or `(`"))
        .parse_next(input)?;
    let is_negated;
    let comparison = if opt(word("is")).parse_next(input)?.is_some() {
        is_negated = opt(word("not")).parse_next(input)?.is_some();
        cut_err(word("null")).context(expected("`null`")).parse_next(input)?;
        Comparison::Null
    } else {
        is_negated = opt(word("not")).parse_next(input)?.is_some();
        if opt(word("in")).parse_next(input)?.is_some() {
            Comparison::In(list.parse_next(input)?)
        } else if opt(word("between")).parse_next(input)?.is_some() {
            let low = value.parse_next(input)?;
            cut_err(word("and")).context(expected("`and`")).parse_next(input)?;
            Comparison::Between(low, value.parse_next(input)?)
        } else if is_negated {
            return cut_err(fail).context(expected("`in` or `between`")).parse_next(input);
        } else {
            let what = expected("a comparison such as `>=`, `in`, `between` or `is null`");
            let operator = cut_err(operator).context(what).parse_next(input)?;
            Comparison::With(operator, value.parse_next(input)?)
        }
    };
    Ok(Condition::Test(Test { column, at: span.start, comparison, is_negated }))
}

fn operator(input: &mut Input<'_>) -> ModalResult<Operator> {
    alt((
        // Longer ones first.
        symbol("<=").value(Operator::AtMost),
        symbol(">=").value(Operator::AtLeast),
        symbol("!=").value(Operator::Differs),
        symbol("<>").value(Operator::Differs),
        symbol("==").value(Operator::Equals),
        symbol("=").value(Operator::Equals),
        symbol("<").value(Operator::Below),
        symbol(">").value(Operator::Above),
    ))
    .parse_next(input)
}

fn list(input: &mut Input<'_>) -> ModalResult<Vec<(Literal, usize)>> {
    cut_err(symbol("(")).context(expected("`(`")).parse_next(input)?;
    let values = separated(1.., value, symbol(",")).parse_next(input)?;
    cut_err(symbol(")")).context(expected("`,` or `)`")).parse_next(input)?;
    Ok(values)
}

/// A value, and the byte at which it is.
fn value(input: &mut Input<'_>) -> ModalResult<(Literal, usize)> {
    let literal = alt((
        number,
        text,
        word("true").value(Literal::Int(1)),
        word("false").value(Literal::Int(0)),
    ));
    let spaced = terminated(literal.with_span(), multispace0);
    let (value, span) = cut_err(spaced)
        .context(expected("a number, a text in quotes, `true` or `false`"))
        .parse_next(input)?;
    Ok((value, span.start))
}

fn number(input: &mut Input<'_>) -> ModalResult<Literal> {
    peek((opt(one_of(['-', '+'])), opt('.'), one_of('0'..='9'))).parse_next(input)?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    take_while(1.., is_part).verify_map(parsed_number).parse_next(input)
}

fn parsed_number(text: &str) -> Option<Literal> {
    if let Ok(number) = text.parse() {
        return Some(Literal::Int(number));
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Literal::Float)
}

/// A text in single or double quotes; a quote in it is written twice.
fn text(input: &mut Input<'_>) -> ModalResult<Literal> {
    let quote: char = one_of(['\'', '"']).parse_next(input)?;
    let mut text = String::new();
    loop {
        let piece: &str = take_till(0.., quote).parse_next(input)?;
        text.push_str(piece);
        cut_err(one_of(quote)).context(expected("a quote at the end")).parse_next(input)?;
        if opt(one_of(quote)).parse_next(input)?.is_none() {
            return Ok(Literal::Text(text));
        }
        text.push(quote);
    }
}

fn column(input: &mut Input<'_>) -> ModalResult<String> {
    let begins = |c: char| c.is_alphabetic() || c == '_';
    (peek(one_of(begins)), take_while(1.., is_of_name))
        .verify_map(|(_, name): (char, &str)| {
            let is_word = WORDS.iter().any(|word| word.eq_ignore_ascii_case(name));
            (!is_word).then(|| name.to_owned())
        })
        .parse_next(input)
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// A word, in any case, and the space behind it.
fn word<'a>(word: &'static str) -> impl Parser<Input<'a>, &'a str, ErrMode<ContextError>> {
    terminated(terminated(literal(Caseless(word)), not(one_of(is_of_name))), multispace0)
}

/// A symbol, and the space behind it.
fn symbol<'a>(symbol: &'static str) -> impl Parser<Input<'a>, &'a str, ErrMode<ContextError>> {
    terminated(literal(symbol), multispace0)
}
