//! The names under which JSON and CSV logs have the fields of a request.

use std::borrow::Cow;

use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::FieldSource;
use tollgate::internal::identity::address::parse_ip;

use super::{LogRecord, text_line, timestamp};

/// What a name stands for. Of several times and addresses the one with the highest rank is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogField<'s> {
    Time {
        rank: u8,
    },
    Ip {
        rank: u8,
    },
    User,
    Email,
    Mac,
    ApiKey,
    Domain,
    Method,
    Host,
    Path,
    /// A path that replaces any other.
    RequestUri,
    /// Method and path: `GET /path HTTP/1.1`.
    RequestLine,
    Status,
    Cost,
    /// A header or an attribute that is selected.
    Selected(FieldSource, &'s str),
}

impl<'s> LogField<'s> {
    /// The field of a name; `None` if no rule needs it. Headers have the spelling of a configuration, of nginx or of
    /// Traefik; any other name is an attribute, also in a log that has many more fields than the rules use.
    pub fn of(name: &str, selection: &'s FieldSelection) -> Option<LogField<'s>> {
        Some(match name {
            "msec" | "StartUTC" => LogField::Time { rank: 3 },
            "ts" | "time_iso8601" | "@timestamp" | "timestamp" => LogField::Time { rank: 2 },
            "time" | "StartLocal" | "time_local" => LogField::Time { rank: 1 },
            "ip" | "client_ip" | "ClientHost" => LogField::Ip { rank: 2 },
            "remote_ip" | "remote_addr" | "ClientAddr" => LogField::Ip { rank: 1 },
            "user" | "remote_user" | "user_id" | "ClientUsername" => LogField::User,
            "email" => LogField::Email,
            "mac" => LogField::Mac,
            "api_key" => LogField::ApiKey,
            "domain" => LogField::Domain,
            "method" | "request_method" | "RequestMethod" => LogField::Method,
            "host" | "http_host" | "RequestHost" => LogField::Host,
            "request_uri" => LogField::RequestUri,
            "path" | "uri" | "url" | "RequestPath" => LogField::Path,
            "request" => LogField::RequestLine,
            "status" | "DownstreamStatus" => LogField::Status,
            "cost" => LogField::Cost,
            _ => {
                let attribute = name.strip_prefix("attr:").unwrap_or(name);
                return LogField::attribute(attribute, selection)
                    .or_else(|| LogField::header(name.strip_prefix("header:")?, selection))
                    .or_else(|| LogField::header(name.strip_prefix("request_")?, selection))
                    .or_else(|| LogField::header_of_nginx(name.strip_prefix("http_")?, selection));
            }
        })
    }

    pub fn header(name: &str, selection: &'s FieldSelection) -> Option<LogField<'s>> {
        let mut headers = selection.headers.iter().map(|header| header.as_str());
        let header = headers.find(|header| header.eq_ignore_ascii_case(name))?;
        Some(LogField::Selected(FieldSource::Header, header))
    }

    /// nginx writes `_` for `-`.
    fn header_of_nginx(name: &str, selection: &'s FieldSelection) -> Option<LogField<'s>> {
        if selection.headers.is_empty() {
            return None;
        }
        LogField::header(name, selection).or_else(|| LogField::header(&name.replace('_', "-"), selection))
    }

    pub fn attribute(name: &str, selection: &'s FieldSelection) -> Option<LogField<'s>> {
        selection.attributes.get(name).map(|name| LogField::Selected(FieldSource::Attr, name))
    }
}

impl<'a> LogRecord<'a> {
    /// Sets a field, which the log calls `name`; an empty value or `-` is absent.
    pub fn set(&mut self, field: LogField<'a>, name: &str, value: Cow<'a, str>) -> Result<(), String> {
        if value.is_empty() || value == "-" {
            return Ok(());
        }
        match field {
            LogField::Time { rank } => self.set_time(name, &value, rank)?,
            LogField::Ip { rank } => self.set_ip(name, &value, rank)?,
            LogField::User => self.user = Some(value),
            LogField::Email => self.email = Some(value),
            LogField::Mac => self.mac = Some(value),
            LogField::ApiKey => self.api_key = Some(value),
            LogField::Domain => self.domain = Some(value),
            LogField::Method => self.method = Some(value),
            LogField::Host => self.host = Some(value),
            LogField::RequestUri => self.path = Some(value),
            LogField::Path => _ = self.path.get_or_insert(value),
            LogField::RequestLine => text_line::read_request(self, value)?,
            LogField::Status => {
                let status = value.parse().map_err(|_| format!("'{name}' is not a status: {value}"))?;
                self.status = Some(status);
            }
            LogField::Cost => {
                let cost = value.parse().map_err(|_| format!("'cost' is not a number: {value}"))?;
                self.cost = Some(cost);
            }
            LogField::Selected(source, name) => self.fields.push((source, name, value)),
        }
        Ok(())
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
