//! TLS failures that no retry mends: the check that failed, and the setting that mends it.

use std::error::Error as StdError;

use forebay_error::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// The TLS library's name of a server's certificate that is an authority's, as `openssl req -x509`
/// makes them.
const AUTHORITYS_OWN: &str = "CaUsedAsEndEntity";

/// The command that makes a self-signed certificate of a server.
const SERVER_CERTIFICATE: &str = "openssl req -x509 -newkey rsa:2048 -nodes -days 365 \
     -keyout key.pem -out cert.pem -subj /CN=HOST -addext subjectAltName=DNS:HOST \
     -addext basicConstraints=critical,CA:FALSE";

/// Returns the error of a handshake whose outcome the next attempt would share; `None` for any
/// other failure.
pub(super) fn failure(error: &(dyn StdError + 'static)) -> Option<Error> {
    let tls = cause(error)?;
    let invalid = |check: &str, what: &str| {
        Error::new(ErrorKind::Invalid, what).at("check", check).at("tls", tls)
    };
    Some(match tls {
        TlsError::InvalidCertificate(wrong) => certificate(wrong, &invalid),
        TlsError::InvalidMessage(_) => {
            invalid("protocol", "the port of the store does not speak TLS")
                .advise("use http:// in the endpoint, or the store's TLS port")
        }
        TlsError::NoCertificatesPresented => {
            invalid("certificate", "the store presents no certificate")
                .advise("check the endpoint, and the TLS settings of the store")
        }
        TlsError::PeerIncompatible(_) => {
            invalid("version", "the store and this client share no TLS version or cipher")
                .advise("let the store offer TLS 1.2 or 1.3")
        }
        TlsError::AlertReceived(
            AlertDescription::HandshakeFailure
            | AlertDescription::ProtocolVersion
            | AlertDescription::UnrecognisedName
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate,
        ) => invalid("alert", "the store rejected the TLS handshake")
            .advise("check the host name of the endpoint, and the TLS settings of the store"),
        _ => return None,
    })
}

fn certificate(wrong: &CertificateError, invalid: &dyn Fn(&str, &str) -> Error) -> Error {
    match wrong {
        // A bad signature: another authority of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            invalid("authority", "the store's certificate is signed by an unknown authority")
                .advise(
                    "set `ca_bundle` of its [[source]], or AWS_CA_BUNDLE, to the authority's \
                     certificate",
                )
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            invalid("name", "the store's certificate is for another host name")
                .advise("use a host name of the certificate in the endpoint")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            invalid("expiry", "the store's certificate expired")
                .advise("renew the certificate of the store; check this machine's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            invalid("expiry", "the store's certificate is not valid yet")
                .advise("check this machine's clock")
        }
        CertificateError::Revoked => invalid("revocation", "the store's certificate was revoked")
            .advise("renew the certificate of the store"),
        CertificateError::Other(other) if format!("{other:?}").contains(AUTHORITYS_OWN) => {
            invalid("usage", "the store presents an authority's certificate as its own").advise(
                format!("make one for a server, and set `ca_bundle` to it: {SERVER_CERTIFICATE}"),
            )
        }
        _ => invalid("certificate", "the store's certificate is invalid")
            .advise("renew the certificate of the store, or set `ca_bundle` of its [[source]]"),
    }
}

/// Returns the TLS library's error among the causes. An `io::Error` skips its content when asked
/// for its cause, so the content is taken instead.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<TlsError>() {
            return Some(found);
        }
        next = match error.downcast_ref::<std::io::Error>() {
            Some(error) => error.get_ref().map(|content| content as &(dyn StdError + 'static)),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn check(tls: TlsError) -> Option<String> {
        let refusal = object_store::Error::Generic {
            store: "S3",
            // As hyper wraps it.
            source: Box::new(io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls))),
        };
        let error = failure(&refusal)?;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.advice().is_some(), "{error}");
        error.place("check").map(str::to_owned)
    }

    #[test]
    fn failed_check_of_a_certificate_is_named() {
        for (wrong, name) in [
            (CertificateError::UnknownIssuer, "authority"),
            (CertificateError::NotValidForName, "name"),
            (CertificateError::Expired, "expiry"),
            (CertificateError::NotValidYet, "expiry"),
            (CertificateError::Revoked, "revocation"),
            (CertificateError::BadSignature, "authority"),
            (CertificateError::BadEncoding, "certificate"),
        ] {
            assert_eq!(check(TlsError::InvalidCertificate(wrong)).as_deref(), Some(name));
        }
    }

    #[test]
    fn plain_http_on_a_tls_port_is_recognised() {
        let content = rustls::InvalidMessage::InvalidContentType;
        assert_eq!(check(TlsError::InvalidMessage(content)).as_deref(), Some("protocol"));
    }

    #[test]
    fn passing_failures_are_left_to_retries() {
        assert_eq!(check(TlsError::HandshakeNotComplete), None);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(failure(&reset), None);
    }
}
