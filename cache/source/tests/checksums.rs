//! A store's own checksums: what is asked, what an answer means, and what becomes of refusals.
//!
//! Answers are worded as Amazon's reference words them (HeadObject, GetObjectAttributes),
//! or as a store that speaks S3 was seen to word them; the checksums are the catalogue's of
//! `123456789`.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod web;

use forebay_error::ErrorKind;
use forebay_source::{Binding, Checksums, Comparison, Limits, Options, Sources, Stat};
use web::{Asked, Said, Web};

const READER: &str = env!("CARGO_BIN_EXE_forebay-test-reader");
const URL: &str = "s3://bucket/dir/train.tar";
/// With a dash, as many servers make it of a time and a length: no mark of parts.
const ETAG: &str = "\"65af-1b3c\"";

/// Content of every piece, and its checksums.
const BYTES: &[u8] = b"123456789";
const CRC64NVME: &str = "rosUhgp5mIg=";
const CRC32C: &str = "4waSgw==";
const CRC32: &str = "y/Q5Jg==";
const SHA256: &str = "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=";

fn ok(headers: &[&str], body: &str) -> Said {
    let headers = headers.iter().map(|&header| header.to_owned());
    (200, headers.chain([format!("ETag: {ETAG}")]).collect(), body.to_owned())
}

fn refusal(status: u16) -> Said {
    (status, Vec::new(), String::new())
}

fn is_of_attributes(asked: &Asked) -> bool {
    asked.target.contains("attributes")
}

/// A page of parts, as the reference words it.
fn page(parts: &[(u32, u64, &str)], more: Option<u32>) -> Said {
    let part = |(number, size, checksum): &(u32, u64, &str)| {
        format!(
            "<Part><PartNumber>{number}</PartNumber><Size>{size}</Size>\
             <ChecksumCRC32C>{checksum}</ChecksumCRC32C></Part>"
        )
    };
    let parts: String = parts.iter().map(part).collect();
    let more = more.map_or("<IsTruncated>false</IsTruncated>".to_owned(), |next| {
        format!(
            "<IsTruncated>true</IsTruncated><NextPartNumberMarker>{next}</NextPartNumberMarker>"
        )
    });
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <GetObjectAttributesOutput xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <ETag>65af-1b3c</ETag><ObjectParts>{more}<MaxParts>1000</MaxParts>{parts}</ObjectParts>\
         </GetObjectAttributesOutput>"
    );
    ok(&[], &body)
}

/// Result of a request.
struct Told {
    comparison: Option<Comparison>,
    sources: Sources,
    web: Web,
}

impl Told {
    fn checksums(&self) -> Checksums {
        self.sources.links()[0].checksums
    }
}

async fn ask_with(
    options: Options,
    len: u64,
    answer: impl Fn(&Asked) -> Said + Send + Sync + 'static,
) -> Told {
    let web = Web::new(answer);
    let limits = Limits { retries: 0, ..Limits::default() };
    let sources = Sources::new(vec![READER.into()], limits).unwrap();
    let options = options.with("AWS_ENDPOINT_URL", &web.url());
    let source = sources.open(URL, &options).unwrap();
    let stat = Stat::new(len, ETAG.to_owned(), Binding::Strong);
    let comparison = source.origin_checksum(URL, &stat).await;
    Told { comparison, sources, web }
}

async fn ask(pieces: u64, answer: impl Fn(&Asked) -> Said + Send + Sync + 'static) -> Told {
    let options = Options::default()
        .with("AWS_ACCESS_KEY_ID", "key")
        .with("AWS_SECRET_ACCESS_KEY", "hunter2");
    ask_with(options, pieces * BYTES.len() as u64, answer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_objects_are_compared_by_any_known_checksum() {
    for (name, checksum) in
        [("crc64nvme", CRC64NVME), ("crc32c", CRC32C), ("crc32", CRC32), ("sha256", SHA256)]
    {
        for kind in ["x-amz-checksum-type: FULL_OBJECT", "x-amz-nothing: 1"] {
            let header = format!("x-amz-checksum-{name}: {checksum}");
            let mut told = ask(1, move |_| ok(&[&header, kind], "")).await;
            let mut right = told.comparison.take().unwrap_or_else(|| panic!("{name}"));
            right.update(BYTES).unwrap();
            right.finish().unwrap();
            assert_eq!(told.checksums(), Checksums { agreed: 1, ..Checksums::default() }, "{name}");
            let asked = &told.web.asked()[..];
            assert_eq!(asked.len(), 1, "{asked:?}");
            assert_eq!(asked[0].header("x-amz-checksum-mode"), Some("ENABLED"));
            assert_eq!(asked[0].target.split('?').next(), Some("/bucket/dir/train.tar"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn differing_bytes_are_corrupt() {
    let header = format!("x-amz-checksum-crc64nvme: {CRC64NVME}");
    let mut told = ask(1, move |_| ok(&[&header], "")).await;
    let mut wrong = told.comparison.take().unwrap();
    let error = wrong.update(b"123456780").unwrap_err();
    assert_eq!((error.kind(), error.place("checksum")), (ErrorKind::Corrupt, Some("CRC64NVME")));
    assert_eq!(told.checksums(), Checksums { differed: 1, ..Checksums::default() });
}

/// A composite checksum does not cover the bytes; the checksums of the parts do.
#[tokio::test(flavor = "multi_thread")]
async fn multipart_objects_are_compared_part_by_part() {
    let mut told = ask(3, |asked| match is_of_attributes(asked) {
        false => ok(&["x-amz-checksum-crc32c: AAAAAA==-3", "x-amz-checksum-type: COMPOSITE"], ""),
        true if asked.header("x-amz-part-number-marker") == Some("2") => {
            page(&[(3, 9, CRC32C)], None)
        }
        true => page(&[(1, 9, CRC32C), (2, 9, CRC32C)], Some(2)),
    })
    .await;
    let mut comparison = told.comparison.take().unwrap();
    comparison.update(b"12345678912345").unwrap();
    let error = comparison.update(b"6780").unwrap_err();
    assert_eq!((error.kind(), error.place("offset")), (ErrorKind::Corrupt, Some("18")));
    assert_eq!(told.web.asked().len(), 3);
}

/// As moto answers: the checksum of checksums without a mark of it.
#[tokio::test(flavor = "multi_thread")]
async fn multipart_etag_is_no_checksum_of_the_whole() {
    let header = format!("x-amz-checksum-sha256: {SHA256}");
    let options = Options::default().with("AWS_SKIP_SIGNATURE", "true");
    let told = ask_with(options, 9, move |asked| match is_of_attributes(asked) {
        false => (
            200,
            vec![header.clone(), "ETag: \"fdd3f8f29045d7454477dd634c8cd8cb-2\"".to_owned()],
            String::new(),
        ),
        true => page(&[], None),
    })
    .await;
    assert!(told.comparison.is_none());
    assert_eq!(told.checksums(), Checksums { none: 1, ..Checksums::default() });
    assert!(told.web.asked().iter().all(|asked| asked.header("authorization").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_withheld_checksums_are_counted_apart() {
    let none = Checksums { none: 1, ..Checksums::default() };
    let untold = Checksums { untold: 1, ..Checksums::default() };
    let parts = |asked: &Asked, then: Said| match is_of_attributes(asked) {
        false => ok(&["x-amz-checksum-crc32c: AAAAAA==-1"], ""),
        true => then,
    };
    type Answer = Box<dyn Fn(&Asked) -> Said + Send + Sync>;
    let cases: [(&str, Answer, Checksums); 9] = [
        ("no checksum", Box::new(|_| ok(&[], "")), none),
        ("one that cannot be taken", Box::new(|_| ok(&["x-amz-checksum-sha1: AAAA"], "")), none),
        ("one that is none", Box::new(|_| ok(&["x-amz-checksum-crc32c: AAAA"], "")), none),
        (
            "no parts",
            Box::new(move |asked| parts(asked, ok(&[], "<GetObjectAttributesOutput/>"))),
            none,
        ),
        (
            "parts of another length",
            Box::new(move |asked| parts(asked, page(&[(1, 8, CRC32C)], None))),
            none,
        ),
        ("a HEAD that is denied", Box::new(|_| refusal(403)), untold),
        ("attributes that are denied", Box::new(move |asked| parts(asked, refusal(403))), untold),
        (
            "attributes that are not built",
            Box::new(move |asked| parts(asked, refusal(501))),
            untold,
        ),
        ("a store that is busy", Box::new(|_| refusal(503)), untold),
    ];
    for (name, answer, counts) in cases {
        let told = ask(1, answer).await;
        assert!(told.comparison.is_none(), "{name}");
        assert_eq!(told.checksums(), counts, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_of_another_version_are_not_compared() {
    let told = ask(1, |_| {
        let header = format!("x-amz-checksum-crc32c: {CRC32C}");
        (200, vec![header, "ETag: \"other\"".to_owned()], String::new())
    })
    .await;
    assert!(told.comparison.is_none());
}

/// The request also states that the requester pays.
#[tokio::test(flavor = "multi_thread")]
async fn checksum_requests_are_signed_like_all_others() {
    let options = Options::default()
        .with("AWS_ACCESS_KEY_ID", "key")
        .with("AWS_SECRET_ACCESS_KEY", "hunter2")
        .with("AWS_SESSION_TOKEN", "token")
        .with("AWS_REQUEST_PAYER", "requester");
    let header = format!("x-amz-checksum-crc32c: {CRC32C}");
    let told = ask_with(options, 9, move |_| ok(&[&header], "")).await;
    assert!(told.comparison.is_some());
    let asked = told.web.asked().remove(0);
    assert_eq!(asked.header("x-amz-request-payer"), Some("requester"));
    assert_eq!(asked.header("x-amz-security-token"), Some("token"));
    assert!(asked.header("authorization").is_some_and(|text| text.contains("Credential=key/")));
    assert!(!format!("{asked:?}").contains("hunter2"));
    assert_eq!(told.sources.counters().requests, 1, "it goes over the same wire");
}
