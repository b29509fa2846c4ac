//! Families of bills: what was fetched and written for whom, by tenant and data set. Jobs come and
//! go without a bound: `forebay cost` tells of those.

use forebay_api::status::Status;
use forebay_source::Billed;
use forebay_store::BillKey;

use super::family::{Family, Sample};

/// The name of what no tenant asked for.
const NO_TENANT: &str = "(rest)";

pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "forebay_bill_requests_total",
        &["tenant", "dataset"],
        "Requests to stores over a network, by first requester; `(rest)` is for requests without a tenant or a data set.",
        |status| each(status, |billed| billed.requests),
    ),
    Family::counter(
        "forebay_bill_origin_bytes_total",
        &["tenant", "dataset"],
        "Payload bytes from stores over a network, by first requester.",
        |status| each(status, |billed| billed.origin_bytes),
    ),
    Family::counter(
        "forebay_bill_file_bytes_total",
        &["tenant", "dataset"],
        "Bytes of files and of commands' output, by first requester.",
        |status| each(status, |billed| billed.file_bytes),
    ),
    Family::counter(
        "forebay_bill_written_bytes_total",
        &["tenant", "dataset"],
        "Bytes written to tiers on disks, by first requester; moves between tiers have none.",
        |status| each(status, |billed| billed.written_bytes),
    ),
];

/// Something of each bill; those of one tenant and data set are added up where samples of one name
/// are.
fn each(status: &Status, of: fn(&Billed) -> u64) -> Vec<Sample> {
    let sample = |(charged, billed): &(BillKey, Billed)| {
        let tenant = charged.tenant.as_deref().unwrap_or(NO_TENANT);
        Sample::new([tenant, &charged.dataset], of(billed))
    };
    status.bills.iter().map(sample).collect()
}
