//! The text of `EBBTIDE_CONF`: the library and the programs read it alike, and numbers are what they say.
#![no_main]

use ebbtide_core::base::config::Config;
use ebbtide_interface::keys::{self, Kind, Value};
use ebbtide_tools::conf::Conf;
use libfuzzer_sys::fuzz_target;

/// The library's configuration, and how many items it does not take.
fn library(text: &[u8]) -> (Config, usize) {
    let mut complaints = 0;
    let config = Config::parse(text, |_, problem| {
        assert!(!problem.to_string().is_empty());
        complaints += 1;
    });
    (config, complaints)
}

/// A number of bytes, read in another way than the library's.
fn bytes_of(text: &str) -> Option<u64> {
    let (digits, unit) = match text.chars().last()?.to_ascii_lowercase() {
        'k' => (&text[..text.len() - 1], 1 << 10),
        'm' => (&text[..text.len() - 1], 1 << 20),
        'g' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    if digits.is_empty() || digits.contains(|digit: char| !digit.is_ascii_digit()) {
        return None;
    }
    let number: u128 = digits
        .trim_start_matches('0')
        .parse()
        .or(match digits.len() {
            0 => Err(()),
            // Only zeroes, or more digits than any number has.
            _ if digits.bytes().all(|digit| digit == b'0') => Ok(0),
            _ => Err(()),
        })
        .ok()?;
    u64::try_from(number.checked_mul(unit)?).ok()
}

/// Each kind reads the text of a value as it says.
fn check_value(text: &str) {
    for key in keys::KEYS {
        let read = key.kind.read(text.as_bytes());
        let expected = match key.kind {
            Kind::Size => bytes_of(text).map(Value::Number),
            Kind::SizeOrPercent => match text.strip_suffix('%') {
                Some(digits) if digits.ends_with(char::is_alphabetic) => None,
                Some(digits) => bytes_of(digits).filter(|&n| n <= 100).map(Value::Percent),
                None => bytes_of(text).map(Value::Number),
            },
            Kind::Number(low, high) if !text.ends_with(char::is_alphabetic) => bytes_of(text)
                .filter(|number| (low..=high).contains(number))
                .map(Value::Number),
            Kind::Number(..) => None,
            Kind::Word(words) => words.iter().position(|&word| word == text).map(Value::Word),
            Kind::OneOf => match text {
                "off" => Some(0),
                "on" => Some(keys::GUARD_RATE),
                "all" => Some(1),
                _ if text.ends_with(char::is_alphabetic) => None,
                _ => bytes_of(text).filter(|n| (1..=u64::from(u32::MAX)).contains(n)),
            }
            .map(Value::Number),
            Kind::Rate => match text {
                "off" => Some(0),
                "on" => Some(keys::RATE),
                _ => bytes_of(text).filter(|n| (1..=keys::MAX_RATE).contains(n)),
            }
            .map(Value::Number),
            Kind::Path => is_path(text).then_some(Value::Path(text.as_bytes())),
            Kind::Dump => {
                let of = |name: &str| {
                    let by_name = keys::SIGNALS.iter().find(|(known, _)| {
                        name == *known || name.strip_prefix("SIG") == Some(known)
                    });
                    let number = bytes_of(name).filter(|_| !name.ends_with(char::is_alphabetic));
                    let free = number.filter(|number| keys::FREE_SIGNALS.contains(number));
                    by_name
                        .map(|found| found.1)
                        .or(free.map(|number| number as u8))
                };
                let is_signal = |name: &&str| {
                    !name.is_empty() && name.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9'))
                };
                let split = text.rsplit_once('@').filter(|(_, name)| is_signal(name));
                let (path, signal) = split.map_or((text, Some(0)), |(path, name)| (path, of(name)));
                signal
                    .filter(|_| is_path(path))
                    .map(|signal| Value::Dump(path.as_bytes(), signal))
            }
        };
        assert_eq!(read, expected, "{}: {text}", key.name);
    }
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= keys::MAX_PATH_BYTES
}

fuzz_target!(|bytes: &[u8]| {
    let (config, complaints) = library(bytes);
    let problems = keys::items(bytes)
        .filter(|&item| keys::read(item).is_err())
        .count();
    // `syscalls=basic` excludes two other settings.
    assert!((problems..=problems + 2).contains(&complaints));
    assert!(config.workers <= keys::MAX_WORKERS as usize || config.workers == usize::MAX);

    let Ok(text) = core::str::from_utf8(bytes) else {
        return;
    };
    keys::items(bytes).for_each(|item| {
        let value = item.split(|&byte| byte == b'=' || byte == b':').next_back();
        check_value(core::str::from_utf8(value.unwrap_or_default()).unwrap_or_default());
    });
    let parsed = Conf::parse(text);
    assert_eq!(parsed.is_ok(), problems == 0, "{text}");
    if let Ok(conf) = parsed {
        // `INV-CONF-2`, and the printed configuration means the same to the library.
        let printed = conf.to_string();
        assert_eq!(Conf::parse(&printed).ok().as_ref(), Some(&conf));
        assert_eq!(library(printed.as_bytes()), (config, complaints.min(2)));
        for key in keys::KEYS {
            let read = conf
                .get(key.name)
                .map(|value| key.kind.read(value.as_bytes()));
            assert!(read != Some(None), "INV-CONF-1: {}", key.name);
        }
    }
});
