//! What the manual pages say beside the options: exit status, environment and examples of each command.

use ebbtide_tools::manual::{Page, Rows};

const OWN: (&str, &str) = (
    "125",
    "An error of this program, such as an unknown option or an unknown key; the line on stderr names the remedy.",
);
const CONF: (&str, &str) = (
    "EBBTIDE_CONF",
    "Settings of the library, as key=value,…; --conf overrides single keys.",
);
const LIB: (&str, &str) = (
    "EBBTIDE_LIB",
    "Path of libebbtide.so; --lib overrides it. Without both, the library beside this program is taken, then the usual directories.",
);
const NONE: Rows = &[("EBBTIDE_CONF, EBBTIDE_LIB", "Have no effect here.")];
const COMMAND: Rows = &[
    (
        "status of COMMAND",
        "COMMAND has run and ended; 128 and the signal's number if a signal ended it.",
    ),
    ("0", "No COMMAND was given, and there was no error."),
    OWN,
    ("126", "COMMAND was found and cannot be executed."),
    ("127", "COMMAND was not found."),
];
const SIMPLE: Rows = &[("0", "It is done."), OWN];
const ASKED: Rows = &[
    ("0", "The process has done it."),
    (
        "75",
        "The process did not answer in time. It does it at its next slow call of malloc or free.",
    ),
    OWN,
];

/// What the page of a command says.
pub fn page(name: &str) -> Page {
    let (status, environment, examples): (Rows, Rows, Rows) = match name {
        "ebbtide" => (
            &[
                ("0", "It is done."),
                (
                    "125",
                    "An error of this program; the line on stderr names the remedy. The page of each command lists its other statuses.",
                ),
            ],
            &[
                CONF,
                LIB,
                (
                    "EBBTIDE_COMPLETE",
                    "Set by the scripts of 'ebbtide completions': this program then prints candidates for the word that is typed.",
                ),
            ],
            &[
                ("ebbtide run PROGRAM", "Run a program with Ebbtide:"),
                (
                    "ebbtide run --compare PROGRAM < /dev/null",
                    "Measure what Ebbtide changes for it:",
                ),
                ("ebbtide top", "Watch the processes that run under Ebbtide:"),
                ("ebbtide doctor", "Check what this machine offers:"),
            ],
        ),
        "ebbtide-run" => (
            &[
                (
                    "status of COMMAND",
                    "COMMAND has run and ended. With a summary or --compare: 128 and the signal's number if a signal ended it.",
                ),
                (
                    "125",
                    "An error of this program, or Ebbtide cannot take effect in COMMAND, which --force runs all the same; the line on stderr names the remedy.",
                ),
                ("126", "COMMAND was found and cannot be executed."),
                (
                    "127",
                    "COMMAND was not found. The library ends a program with this status too, if it cannot serve it.",
                ),
            ],
            &[
                CONF,
                LIB,
                ("LD_PRELOAD", "Other libraries in it stay, behind Ebbtide."),
                ("PATH", "Where COMMAND is searched."),
            ],
            &[
                (
                    "ebbtide run PROGRAM ARGUMENTS",
                    "Run a program with its arguments:",
                ),
                (
                    "ebbtide run --summary PROGRAM",
                    "See at the end whether Ebbtide was loaded, and what the program used:",
                ),
                (
                    "ebbtide run --compare PROGRAM < /dev/null",
                    "Compare rounds with Ebbtide and without:",
                ),
                (
                    "ebbtide run --conf retain_ms=200,limit=64M PROGRAM",
                    "Change settings:",
                ),
            ],
        ),
        "ebbtide-top" => (
            COMMAND,
            &[
                CONF,
                LIB,
                (
                    "NO_COLOR",
                    "If it is set, the view has shades in place of colours.",
                ),
                (
                    "TMPDIR",
                    "Directory for the output of COMMAND while the view is open.",
                ),
            ],
            &[
                ("ebbtide top", "Watch all your processes that keep figures:"),
                ("ebbtide top --once 4711", "Print one table of one process:"),
                (
                    "ebbtide top -- PROGRAM ARGUMENTS",
                    "Start a program and watch it:",
                ),
                (
                    "ebbtide top --json --interval 5s",
                    "Print an object every five seconds, until a signal comes:",
                ),
            ],
        ),
        "ebbtide-profile" => (
            COMMAND,
            &[CONF, LIB],
            &[
                (
                    "ebbtide profile --seconds 1 4711",
                    "Sample a process for a second:",
                ),
                (
                    "ebbtide profile -o heap.svg -- PROGRAM",
                    "Draw the heap of a program at its peak:",
                ),
                (
                    "ebbtide profile --leaks -- PROGRAM",
                    "Show what a program had not freed at its end:",
                ),
            ],
        ),
        "ebbtide-explain" => (
            SIMPLE,
            NONE,
            &[
                (
                    "ebbtide explain 4711",
                    "Show where the memory of a process is:",
                ),
                ("ebbtide explain 4711 --json", "The same for a script:"),
            ],
        ),
        "ebbtide-release" => (
            ASKED,
            NONE,
            &[
                (
                    "ebbtide release 4711",
                    "Let a process return its free memory:",
                ),
                (
                    "ebbtide release 4711 --wait 30s",
                    "Wait longer for a process that is busy:",
                ),
            ],
        ),
        "ebbtide-set" => (
            ASKED,
            NONE,
            &[
                (
                    "ebbtide set 4711 retain_ms=200",
                    "Keep freed memory for a shorter time:",
                ),
                (
                    "ebbtide set 4711 limit=64M",
                    "Bound the free memory that the process keeps:",
                ),
            ],
        ),
        "ebbtide-service" => (
            &[
                (
                    "0",
                    "It is done. For status: the service is enabled, and has loaded the library if it runs.",
                ),
                ("1", "For status: one of these does not hold."),
                OWN,
            ],
            &[LIB],
            &[
                (
                    "ebbtide service enable redis-server",
                    "Let a service run under Ebbtide from its next start on:",
                ),
                (
                    "ebbtide service status redis-server",
                    "See whether it does:",
                ),
                ("ebbtide service disable redis-server", "Undo it:"),
            ],
        ),
        "ebbtide-metrics" => (
            SIMPLE,
            NONE,
            &[
                (
                    "ebbtide metrics",
                    "Print the figures of all your processes once:",
                ),
                (
                    "ebbtide metrics --listen 127.0.0.1:9485",
                    "Serve them to Prometheus:",
                ),
                (
                    "ebbtide metrics --textfile ebbtide.prom",
                    "Replace a file for node_exporter:",
                ),
            ],
        ),
        "ebbtide-doctor" => (
            &[
                ("0", "The library works here."),
                ("1", "It does not; the report says why."),
                OWN,
            ],
            &[
                LIB,
                ("EBBTIDE_CONF", "Settings with which the library is tested."),
                (
                    "XDG_RUNTIME_DIR",
                    "Directory in which helpers of exit=detached take turns.",
                ),
            ],
            &[
                ("ebbtide doctor", "Check this machine:"),
                ("ebbtide doctor --json", "The same for a script:"),
            ],
        ),
        "ebbtide-bench" | "ebbtide-report" => (
            &[
                ("status of ebbtide-bench", "See ebbtide-bench(1)."),
                (
                    "125",
                    "The program ebbtide-bench is not installed, or it reports an error.",
                ),
            ],
            &[LIB],
            match name {
                "ebbtide-bench" => &[(
                    "ebbtide bench micro --quick",
                    "Single operations beside all installed peers:",
                )],
                _ => &[(
                    "ebbtide report --only micro",
                    "A page with one family in its quick form:",
                )],
            },
        ),
        "ebbtide-completions" => (
            SIMPLE,
            NONE,
            &[
                (
                    "source <(ebbtide completions bash)",
                    "Completions for this shell only (bash, zsh):",
                ),
                (
                    "ebbtide completions fish > ~/.config/fish/completions/ebbtide.fish",
                    "Completions in fish from now on:",
                ),
            ],
        ),
        "ebbtide-man" => (
            SIMPLE,
            NONE,
            &[("ebbtide man --dir pages", "Write all pages to a directory:")],
        ),
        _ => (&[], &[], &[]),
    };
    let examples = examples.iter();
    let examples = examples.map(|&(command, meaning)| (command.into(), meaning.into()));
    Page {
        status,
        environment,
        examples: examples.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_all_three_parts() {
        let mut all = Cli::command();
        all.build();
        let names = all.get_subcommands().map(|command| command.get_name());
        for name in names.filter(|&name| name != "help") {
            let page = page(&format!("ebbtide-{name}"));
            assert!(
                !page.status.is_empty() && !page.environment.is_empty(),
                "{name}"
            );
            assert!(!page.examples.is_empty(), "{name}");
        }
    }
}
