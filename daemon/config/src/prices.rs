//! `[prices]`: what a node's work costs, for reports.

use forebay_error::{Error, ErrorKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Characters of a currency's name, at most: ISO 4217 has three, and `credits` are paid with, too.
const CURRENCY_MAX: usize = 16;

/// `[prices]`: what a node's work costs. What has no price is told as an amount alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Currency of all prices, like `USD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// For 2^30 bytes that leave a store over a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_per_gib: Option<f64>,
    /// For a thousand requests to a store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_1000_requests: Option<f64>,
    /// For 2^40 bytes written to tiers on disks: a drive's price over the bytes that it is rated
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_tib_written: Option<f64>,
    /// For an hour of one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<f64>,
}

impl Prices {
    /// Refuses what is no price.
    pub(super) fn check(&self) -> Result<()> {
        let prices = [
            ("egress_per_gib", self.egress_per_gib),
            ("per_1000_requests", self.per_1000_requests),
            ("per_tib_written", self.per_tib_written),
            ("gpu_hour", self.gpu_hour),
        ];
        let is_price = |price: f64| price.is_finite() && price >= 0.0;
        if let Some((key, _)) =
            prices.iter().find(|(_, price)| price.is_some_and(|price| !is_price(price)))
        {
            let what = format!("{key} must be a number of 0 or more");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let is_name = |name: &String| {
            let plain = name.chars().all(|c| c.is_alphanumeric());
            plain && (1..=CURRENCY_MAX).contains(&name.chars().count())
        };
        match &self.currency {
            Some(name) if !is_name(name) => {
                Err(Error::new(ErrorKind::Invalid, "currency must be a name of letters")
                    .at("currency", name)
                    .advise("write it like `USD`"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    const TIER: &str = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";

    #[test]
    fn prices_may_be_whole_numbers() {
        let text =
            format!("{TIER}[prices]\ncurrency = 'USD'\negress_per_gib = 0.09\ngpu_hour = 3\n");
        let prices = Config::parse(&text).unwrap().prices;
        assert_eq!((prices.egress_per_gib, prices.gpu_hour), (Some(0.09), Some(3.0)));
        assert_eq!((prices.currency.as_deref(), prices.per_1000_requests), (Some("USD"), None));
    }

    #[test]
    fn invalid_prices_are_rejected_with_their_line() {
        for (text, words) in [
            ("gpu_hour = -1", ["line=6", "gpu_hour"]),
            ("egress_per_gib = inf", ["line=6", "egress_per_gib"]),
            ("gpu_hour = '3 USD'", ["line=6", "gpu_hour"]),
            ("currency = '$ and more'", ["line=6", "currency"]),
            ("gpu_hours = 3", ["line=6", "`gpu_hour`"]),
        ] {
            let error = Config::parse(&format!("{TIER}[prices]\n{text}\n")).unwrap_err();
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }
}
