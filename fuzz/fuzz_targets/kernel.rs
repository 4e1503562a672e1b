//! The readers of `/proc` and of cgroup files. A container, or the environment, can put any text there.
#![no_main]

use ebbtide_sys::file::{Text, parse_number};
use ebbtide_sys::fuzzing::{self, Given, GivenLevel};
use ebbtide_sys::pressure::group::Version;
use libfuzzer_sys::fuzz_target;

/// Lines come whole, up to 1,024 bytes of each.
fn check_lines(given: Given) {
    let mut lines = Vec::new();
    assert!(given.lines(|line| {
        lines.push(line.to_vec());
        true
    }));
    let text = given.text.strip_suffix(b"\n").unwrap_or(given.text);
    let mut expected: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    if given.text.is_empty() {
        expected.clear();
    }
    let expected = expected.iter().map(|line| &line[..line.len().min(1024)]);
    assert!(lines.iter().eq(expected), "{lines:?}");
}

fn check_number(text: &[u8]) {
    let digits: Vec<u8> = text
        .trim_ascii_start()
        .iter()
        .copied()
        .take_while(u8::is_ascii_digit)
        .collect();
    let digits = String::from_utf8(digits).expect("digits");
    assert_eq!(parse_number(text), digits.parse().ok());
}

/// A list such as `0-3,8`, read by another code.
fn check_cpus(list: &[u8]) {
    let set = fuzzing::cpus(list);
    let mut expected = [false; 1024];
    for part in list.split(|&byte| byte == b',') {
        let mut ends = part.split(|&byte| byte == b'-').map(parse_number);
        let (first, last) = (ends.next().flatten(), ends.next().flatten());
        if let Some(first) = first {
            for cpu in first..=last.unwrap_or(first).min(1023) {
                expected[cpu as usize] = true;
            }
        }
    }
    assert!((0..1024).all(|cpu| set.has(cpu) == expected[cpu]));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&head, text)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(head >> 1) + 1;
    let given = |text| Given { text, piece };
    check_lines(given(text));
    check_number(text);
    check_cpus(text);
    if let Some(room) = fuzzing::machine(given(text)) {
        room.low_mark();
    }
    fuzzing::stalled_us(given(text));
    if let Some(trigger) = fuzzing::trigger(text) {
        assert!(trigger.stall_us > 0 && trigger.window_us > 0);
        trigger.stalls();
    }
    if let Some(decoded) = fuzzing::decoded(text) {
        assert!(decoded.as_bytes().len() <= text.len() * 3 / 4);
    }
    for version in [Version::V1, Version::V2] {
        if let Some((root, at)) = fuzzing::mount(text, version) {
            assert!(!root.contains(&b' ') && !at.contains(&b'\\'));
        }
        // The files of two levels, with a zero byte between them.
        let mut files = text.split(|&byte| byte == 0).map(given);
        let mut level = || {
            GivenLevel(
                version,
                [(); 4].map(|()| files.next().unwrap_or(given(b""))),
            )
        };
        if let Some(room) = fuzzing::room([level(), level()]) {
            assert!(room.left <= room.limit && room.least <= room.left);
        }
    }
});
