//! Protocols of URLs.

use crate::options::Family;

/// Protocol of a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Google,
    Azure,
    Hub,
    Http,
}

impl Scheme {
    pub(crate) fn of(scheme: &str) -> Option<Self> {
        Some(match scheme {
            "s3" => Self::S3,
            "gs" | "gcs" => Self::Google,
            "az" | "azure" | "abfs" | "abfss" | "wasb" | "wasbs" => Self::Azure,
            "hf" => Self::Hub,
            "http" | "https" => Self::Http,
            _ => return None,
        })
    }

    /// Returns the family of variables it reads.
    pub(crate) fn family(self) -> Option<Family> {
        match self {
            Self::S3 => Some(Family::Aws),
            Self::Google => Some(Family::Google),
            Self::Azure => Some(Family::Azure),
            Self::Hub => Some(Family::HuggingFace),
            Self::Http => None,
        }
    }
}
