//! Containers in Azure's Blob Storage, and in its emulators.
//!
//! The URL or the client names the account. A server that is not Microsoft's gets no identity of
//! the machine.

use forebay_error::{Error, ErrorKind, Result};
use object_store::azure::MicrosoftAzureBuilder;

use super::StoreClient;
use super::bucket::{Bucket, unfit};
use super::refusal::Refusals;
use crate::{Options, network};

/// The account of Azurite, and of the emulator before it.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";

/// The emulator's key, which is public:
/// <https://learn.microsoft.com/azure/storage/common/storage-use-azurite>.
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The emulator's default address.
const EMULATOR_ENDPOINT: &str = "http://127.0.0.1:10000/devstoreaccount1";

/// Suffixes of accounts' hosts, in URLs that name one.
const HOSTS: [&str; 2] = [".dfs.core.windows.net", ".blob.core.windows.net"];

/// The variables that hold credentials.
const CREDENTIALS: [&str; 5] = [
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
];

/// The container that `authority` names: `container`, or `container@account.dfs.core.windows.net`.
pub(crate) fn open(authority: &str, store_client: &StoreClient<'_>) -> Result<Bucket> {
    let options = store_client.options;
    let (container, named) = split(authority)?;
    let emulated = options.is_on("AZURE_STORAGE_USE_EMULATOR");
    let account = named.or(options.get("AZURE_STORAGE_ACCOUNT_NAME"));
    let account = account.or(emulated.then_some(EMULATOR_ACCOUNT)).ok_or_else(|| {
        invalid("no storage account is named").advise(
            "set AZURE_STORAGE_ACCOUNT_NAME, or write abfss://container@account.dfs.core.windows.net/key",
        )
    })?;
    let chosen = options.get("AZURE_STORAGE_ENDPOINT").map(|url| url.trim_end_matches('/'));
    let custom = chosen.or(emulated.then_some(EMULATOR_ENDPOINT));
    let endpoint = match custom {
        Some(url) => url.to_owned(),
        None => format!("https://{account}.blob.core.windows.net"),
    };
    let encrypted = network::endpoint(&endpoint)?.starts_with("https:");
    let builder = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_container_name(container)
        .with_endpoint(endpoint.clone())
        .with_allow_http(!encrypted)
        .with_http_connector(store_client.connector()?)
        .with_retry(store_client.wire.without_retries());
    let builder = with_credentials(builder, options, emulated, custom.is_some())?;
    let store = builder.build().map_err(|error| unfit("Azure", &error))?;
    let refusals =
        Refusals { endpoint, access_advice: access_advice(options), ..Refusals::default() };
    Ok(Bucket::new(store_client, store, refusals).conditional(custom.is_none()))
}

/// The container, and the account if one is named.
fn split(authority: &str) -> Result<(&str, Option<&str>)> {
    let advice = "write az://container/key or abfss://container@account.dfs.core.windows.net/key";
    let unclear = |what: &str| invalid(what).advise(advice);
    let (container, account) = match authority.split_once('@') {
        None => (authority, None),
        Some((container, host)) => {
            let account = HOSTS.iter().find_map(|end| host.strip_suffix(end));
            let account = account.filter(|account| is_word(account));
            (container, Some(account.ok_or_else(|| unclear("the URL names no Azure account"))?))
        }
    };
    if !is_word(container.trim_start_matches('$')) {
        return Err(unclear("the URL names no container"));
    }
    Ok((container, account))
}

/// Returns true if the name is valid for an account or a container.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn with_credentials(
    builder: MicrosoftAzureBuilder,
    options: &Options,
    emulated: bool,
    custom: bool,
) -> Result<MicrosoftAzureBuilder> {
    if options.is_on("AZURE_SKIP_SIGNATURE") {
        // A key that signs nothing keeps object_store from looking for an identity.
        return Ok(builder.with_skip_signature(true).with_access_key(EMULATOR_KEY));
    }
    if let Some(token) = options.get("AZURE_STORAGE_TOKEN") {
        return Ok(builder.with_bearer_token_authorization(token));
    }
    if let Some(key) = options.get("AZURE_STORAGE_ACCOUNT_KEY") {
        return Ok(builder.with_access_key(key));
    }
    if let Some(token) = options.get("AZURE_STORAGE_SAS_TOKEN") {
        let pairs = object_store::azure::split_sas(token).map_err(|_| {
            invalid("AZURE_STORAGE_SAS_TOKEN is not a shared access signature")
                .advise("give the query of the signed URL, as in sv=…&sp=r&sig=…")
        })?;
        return Ok(builder.with_sas_authorization(pairs));
    }
    let (client, tenant) = (options.get("AZURE_CLIENT_ID"), options.get("AZURE_TENANT_ID"));
    let builder = match options.get("AZURE_AUTHORITY_HOST") {
        Some(host) => builder.with_authority_host(host),
        None => builder,
    };
    let builder = match client {
        Some(client) => builder.with_client_id(client),
        None => builder,
    };
    let secret = options.get("AZURE_CLIENT_SECRET");
    let federated = options.get("AZURE_FEDERATED_TOKEN_FILE");
    match (tenant, secret, federated) {
        (Some(tenant), _, Some(file)) if client.is_some() => {
            Ok(builder.with_tenant_id(tenant).with_federated_token_file(file))
        }
        (Some(tenant), Some(secret), _) if client.is_some() => {
            Ok(builder.with_tenant_id(tenant).with_client_secret(secret))
        }
        _ if emulated => Ok(builder.with_access_key(EMULATOR_KEY)),
        // Azure's own machines lend an identity; elsewhere asking for one would only end in a long
        // silence.
        _ if custom => {
            let error =
                Error::new(ErrorKind::PermissionDenied, "no credentials are set for the store");
            Err(error.advise(access_advice(options)))
        }
        _ => Ok(builder),
    }
}

fn access_advice(options: &Options) -> String {
    let state = options.which_are_set(&CREDENTIALS);
    format!(
        "check the credentials and the container's policy: {state}; AZURE_SKIP_SIGNATURE=true reads public containers"
    )
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_containers_and_accounts() {
        assert_eq!(split("c-1").unwrap(), ("c-1", None));
        assert_eq!(split("$web").unwrap(), ("$web", None));
        for host in ["acc.dfs.core.windows.net", "acc.blob.core.windows.net"] {
            assert_eq!(split(&format!("c@{host}")).unwrap(), ("c", Some("acc")));
        }
        for authority in [
            "",
            "@acc.dfs.core.windows.net",
            "c@acc.example.org",
            "c@.dfs.core.windows.net",
            "c:pw@x",
        ] {
            assert_eq!(split(authority).unwrap_err().kind(), ErrorKind::Invalid, "{authority}");
        }
    }
}
