//! The names under which JSON and CSV logs have the fields of a request.

use std::borrow::Cow;

use tollgate::internal::identity::FieldSource;
use tollgate::internal::identity::address::parse_ip;

use super::{LogRecord, text_line, timestamp};

/// What happens to a name that is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UnknownNames {
    Ignored,
    /// They are attributes of the request.
    Attributes,
}

impl<'a> LogRecord<'a> {
    /// Sets the field of a name; an empty value or `-` is absent. Of several sources the most exact one is used.
    pub fn set(&mut self, name: &str, value: Cow<'a, str>, unknown: UnknownNames) -> Result<(), String> {
        if value.is_empty() || value == "-" {
            return Ok(());
        }
        match name {
            "msec" | "StartUTC" => self.set_time(name, &value, 3)?,
            "ts" | "time_iso8601" | "@timestamp" | "timestamp" => self.set_time(name, &value, 2)?,
            "time" | "StartLocal" | "time_local" => self.set_time(name, &value, 1)?,
            "ip" | "client_ip" | "ClientHost" => self.set_ip(name, &value, 2)?,
            "remote_ip" | "remote_addr" | "ClientAddr" => self.set_ip(name, &value, 1)?,
            "user" | "remote_user" | "user_id" | "ClientUsername" => self.user = Some(value),
            "email" => self.email = Some(value),
            "mac" => self.mac = Some(value),
            "api_key" => self.api_key = Some(value),
            "domain" => self.domain = Some(value),
            "method" | "request_method" | "RequestMethod" => self.method = Some(value),
            "host" | "http_host" | "RequestHost" => self.host = Some(value),
            "request_uri" => self.path = Some(value),
            "path" | "uri" | "url" | "RequestPath" => _ = self.path.get_or_insert(value),
            "request" => text_line::read_request(self, value)?,
            "status" | "DownstreamStatus" => {
                let status = value.parse().map_err(|_| format!("'{name}' is not a status: {value}"))?;
                self.status = Some(status);
            }
            "cost" => {
                let cost = value.parse().map_err(|_| format!("'cost' is not a number: {value}"))?;
                self.cost = Some(cost);
            }
            _ => self.set_other(name, value, unknown),
        }
        Ok(())
    }

    /// A header in the spelling of a configuration, of nginx or of Traefik; or an attribute.
    fn set_other(&mut self, name: &str, value: Cow<'a, str>, unknown: UnknownNames) {
        if let Some(header) = name.strip_prefix("header:").or_else(|| name.strip_prefix("request_")) {
            self.header(header, value);
        } else if let Some(header) = name.strip_prefix("http_") {
            self.header(&header.replace('_', "-"), value);
        } else if unknown == UnknownNames::Attributes {
            let name = name.strip_prefix("attr:").unwrap_or(name);
            self.fields.push((FieldSource::Attr, Cow::Owned(name.to_owned()), value));
        }
    }

    pub fn header(&mut self, name: &str, value: Cow<'a, str>) {
        self.fields.push((FieldSource::Header, Cow::Owned(name.to_ascii_lowercase()), value));
    }

    fn set_time(&mut self, name: &str, text: &str, rank: u8) -> Result<(), String> {
        if rank > self.at_rank {
            let at = timestamp::parse(text).ok_or_else(|| format!("'{name}' is not a time: {text}"))?;
            self.at = Some(at);
            self.at_rank = rank;
        }
        Ok(())
    }

    fn set_ip(&mut self, name: &str, text: &str, rank: u8) -> Result<(), String> {
        if rank > self.ip_rank {
            let ip =
                parse_ip(text).or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|peer| peer.ip()));
            self.ip = Some(ip.ok_or_else(|| format!("'{name}' is not an IP address: {text}"))?);
            self.ip_rank = rank;
        }
        Ok(())
    }
}
