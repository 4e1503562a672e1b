//! Completions in real shells: keys, values, programs, processes and peers.

use std::process::{Command, Output};

use ebbtide_tests::{command_line, ensure_installed, library, only_ebbtide};

/// A shell with both programs in `PATH` and a home of its own.
fn shell(name: &str, home: &std::path::Path) -> Option<Command> {
    let bin = command_line()?.parent()?.to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("HOME", home)
        .env("TERM", "dumb")
        .current_dir(home);
    Some(command)
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// What each shell must offer: the words before the cursor, and a candidate.
const WANTED: [(&str, &str); 9] = [
    ("ebbtide run --conf ret", "retain_ms="),
    ("ebbtide run --conf limit=8m,ha", "limit=8m,harden="),
    ("ebbtide set 1 lim", "limit="),
    ("ebbtide do", "doctor"),
    ("ebbtide run --summ", "--summary"),
    ("ebbtide run bas", "bash"),
    ("ebbtide bench mic", "micro"),
    ("ebbtide bench micro --against jemalloc-b", "jemalloc-bg"),
    ("ebbtide-bench free --against mimalloc", "mimalloc3"),
];

/// Runs a script in a shell with the lines to complete as arguments. The script prints `== LINE` and candidates for each.
fn offers(shell_name: &str, arguments: &[&str], script: &str) {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut command) = shell(shell_name, dir.path()) else {
        return;
    };
    let typed = WANTED.iter().map(|(line, _)| line);
    command.args(arguments).arg(script).args(match shell_name {
        "fish" => None,
        other => Some(other),
    });
    let output = command.args(typed).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for (line, wanted) in WANTED {
        let part = said.split("== ").find_map(|part| part.strip_prefix(line));
        let part = part.unwrap_or_else(|| panic!("{line}: {output:?}"));
        let mut words = part.split([' ', '\t', '\n', '\r', '<', '>']);
        assert!(words.any(|word| word == wanted), "{line}: {part}");
    }
}

#[test]
fn bash_completes() {
    // A press of Tab calls the function like this.
    let script = r#"
        source <(ebbtide completions bash); source <(ebbtide-bench completions bash)
        for line; do
            COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9
            function=$(complete -p "${COMP_WORDS[0]}" | sed 's/.* -F \([^ ]*\) .*/\1/')
            "$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2> /dev/null
            printf '%s\n' "== $line" "${COMPREPLY[@]}"
        done"#;
    offers("bash", &["-c"], script);
}

#[test]
fn fish_completes() {
    if ensure_installed("fish", "fish") {
        let script = "ebbtide completions fish | source; ebbtide-bench completions fish | source
            for line in $argv; echo \"== $line\"; complete -C $line; end";
        offers("fish", &["-c"], script);
    }
}

/// In zsh, completions work only while a line is edited, so a terminal types the line and the Tab. The script is a file in `fpath`, as it is
/// installed, and it must work at the first Tab.
#[test]
fn zsh_completes() {
    if ensure_installed("zsh", "zsh") {
        let script = r#"
            mkdir -p f; ebbtide completions zsh > f/_ebbtide; ebbtide-bench completions zsh > f/_ebbtide-bench
            zmodload zsh/zpty
            zpty z zsh -f -i
            zpty -w z 'fpath=($PWD/f $fpath); autoload -U compinit; compinit -u -D; PS1=; LISTMAX=10000; show() { zle -I; print -r -- "line <$BUFFER>"; BUFFER= }; zle -N show; bindkey "^O" show; echo rea""dy'
            zpty -r -m z text '*ready*'
            for line; do
                zpty -w -n z "$line"$'\t\x0f'
                zpty -r -m z text '*line <*>*'
                print -r -- "== $line"; print -r -- "$text"
            done
            zpty -d z"#;
        offers("zsh", &["-f", "-c"], script);
    }
}

#[test]
fn processes_under_ebbtide_are_candidates() {
    let Some(library) = library().filter(|_| only_ebbtide("is found")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(mut bash) = shell("bash", dir.path()) else {
        return;
    };
    // The process itself asks, so that it is there.
    let script = "for shell in bash fish; do EBBTIDE_COMPLETE=$shell _CLAP_COMPLETE_INDEX=2 _CLAP_IFS=$'\\n' ebbtide -- ebbtide release ''; echo; done; echo me $$";
    bash.env("LD_PRELOAD", library).args(["-c", script]);
    let said = lines(&bash.output().unwrap());
    let own = said
        .iter()
        .find_map(|line| line.strip_prefix("me "))
        .unwrap();
    assert!(said.contains(&own.to_owned()), "{said:?}");
    assert!(said.contains(&format!("{own}\tbash")), "{said:?}");
}
