//! The table of files as descriptors (`google/protobuf/descriptor.proto`).

use std::sync::LazyLock;

use super::super::protobuf::WriteFields;
use super::files::{FILES, File, Kind, Message, Method};

/// A file in its serialised form.
pub struct FileBytes {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    /// The full names of its messages, enums, services and methods.
    symbols: Vec<String>,
}

static ALL: LazyLock<Vec<FileBytes>> = LazyLock::new(|| FILES.iter().map(FileBytes::of).collect());

/// The file with this name.
pub fn file(name: &str) -> Option<&'static FileBytes> {
    ALL.iter().find(|file| file.name == name)
}

/// The file that defines a symbol.
pub fn file_with(symbol: &str) -> Option<&'static FileBytes> {
    ALL.iter().find(|file| file.symbols.iter().any(|known| known == symbol))
}

impl FileBytes {
    fn of(file: &File) -> FileBytes {
        let mut bytes = Vec::new();
        bytes.put_text(1, file.name);
        bytes.put_text(2, file.package);
        file.imports.iter().for_each(|import| bytes.put_text(3, import));
        let mut symbols = Vec::new();
        for message in file.messages {
            bytes.put_message(4, |bytes| write_message(bytes, message));
            add_symbols(&mut symbols, file.package, message);
        }
        for (name, values) in file.enums {
            bytes.put_message(5, |bytes| write_enum(bytes, name, values));
            symbols.push(format!("{}.{name}", file.package));
        }
        for (name, methods) in file.services {
            bytes.put_message(6, |bytes| {
                bytes.put_text(1, name);
                methods.iter().for_each(|method| bytes.put_message(2, |bytes| write_method(bytes, method)));
            });
            symbols.push(format!("{}.{name}", file.package));
            symbols.extend(methods.iter().map(|method| format!("{}.{name}.{}", file.package, method.name)));
        }
        bytes.put_text(12, "proto3");
        FileBytes { name: file.name, bytes, symbols }
    }
}

fn add_symbols(symbols: &mut Vec<String>, parent: &str, message: &Message) {
    let name = format!("{parent}.{}", message.name);
    message.enums.iter().for_each(|(inner, _)| symbols.push(format!("{name}.{inner}")));
    message.nested.iter().for_each(|inner| add_symbols(symbols, &name, inner));
    symbols.push(name);
}

const OPTIONAL: u64 = 1;
const REPEATED: u64 = 3;

fn write_message(bytes: &mut Vec<u8>, message: &Message) {
    bytes.put_text(1, message.name);
    for (number, name, kind) in message.fields {
        bytes.put_message(2, |field| {
            field.put_text(1, name);
            field.put_varint(3, u64::from(*number));
            let (label, kind) = match kind {
                Kind::Repeated(kind) => (REPEATED, *kind),
                kind => (OPTIONAL, kind),
            };
            field.put_varint(4, label);
            let (number, type_name) = kind.number();
            field.put_varint(5, number);
            field.put_text(6, type_name);
        });
    }
    message.nested.iter().for_each(|inner| bytes.put_message(3, |bytes| write_message(bytes, inner)));
    message.enums.iter().for_each(|(name, values)| {
        bytes.put_message(4, |bytes| write_enum(bytes, name, values));
    });
    if message.is_map_entry {
        bytes.put_message(7, |options| options.put_varint(7, 1));
    }
}

fn write_enum(bytes: &mut Vec<u8>, name: &str, values: &[&str]) {
    bytes.put_text(1, name);
    for (number, value) in values.iter().enumerate() {
        bytes.put_message(2, |bytes| {
            bytes.put_text(1, value);
            bytes.put_varint(2, number as u64);
        });
    }
}

fn write_method(bytes: &mut Vec<u8>, method: &Method) {
    bytes.put_text(1, method.name);
    bytes.put_text(2, method.request);
    bytes.put_text(3, method.response);
    bytes.put_varint(5, u64::from(method.streams_requests));
    bytes.put_varint(6, u64::from(method.streams_responses));
}

impl Kind {
    /// The number of the type, and the name of a message or an enum.
    const fn number(&self) -> (u64, &'static str) {
        match self {
            Kind::Int64 => (3, ""),
            Kind::Uint64 => (4, ""),
            Kind::Int32 => (5, ""),
            Kind::Bool => (8, ""),
            Kind::Text => (9, ""),
            Kind::Message(name) => (11, name),
            Kind::Bytes => (12, ""),
            Kind::Uint32 => (13, ""),
            Kind::Enum(name) => (14, name),
            Kind::Repeated(kind) => kind.number(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_type_is_in_the_file_or_in_an_import() {
        fn types(message: &Message, found: &mut Vec<&'static str>) {
            let names = message.fields.iter().map(|(_, _, kind)| kind.number().1);
            found.extend(names.filter(|name| !name.is_empty()));
            message.nested.iter().for_each(|inner| types(inner, found));
        }
        for known in FILES {
            let mut named = Vec::new();
            known.messages.iter().for_each(|message| types(message, &mut named));
            let methods = known.services.iter().flat_map(|(_, methods)| methods.iter());
            named.extend(methods.flat_map(|method| [method.request, method.response]));
            for name in named {
                let symbol = name.strip_prefix('.').expect("names are absolute");
                let defined = file_with(symbol).unwrap_or_else(|| panic!("{name} is not defined"));
                let is_visible = defined.name == known.name || known.imports.contains(&defined.name);
                assert!(is_visible, "{} uses {name} without importing {}", known.name, defined.name);
            }
            assert!(known.imports.iter().all(|import| file(import).is_some()), "{}", known.name);
        }
        for service in crate::transport::grpc::SERVICES {
            assert!(file_with(service).is_some(), "{service}");
        }
    }
}
