//! How workers sleep, and what goes above the owner's limit.

use ebbtide_zone::plan::*;

/// As the loop of a worker decided before the planner did, for every kind of iteration.
#[test]
fn a_worker_sleeps_as_before() {
    const WATCH_RETRY_MS: u64 = 200;
    let before = |iteration: Iteration, idle_ms: u64| {
        let (mut wait_ms, mut much) = (None, false);
        match iteration {
            Iteration::MustEnd => {}
            Iteration::Round(next) => {
                much = matches!(next, Next::Much(_));
                if let Next::Much(ms) | Next::Little(ms) = next
                    && idle_ms < IDLE_MS
                {
                    wait_ms = Some(if much { ms } else { ms.min(IDLE_MS - idle_ms) });
                }
            }
            Iteration::NotCoordinating { watches: true } => {
                (wait_ms, much) = (Some(WATCH_RETRY_MS), true)
            }
            Iteration::NotCoordinating { .. } => {}
        }
        match wait_ms {
            Some(ms) => Sleep::Watching {
                ms,
                keeps_watcher: much,
            },
            None if iteration != Iteration::MustEnd && idle_ms < IDLE_MS => {
                Sleep::Resting(IDLE_MS - idle_ms)
            }
            None => Sleep::End,
        }
    };
    let nexts = [0, 10, 5000, 20_000].map(|ms| [Next::Much(ms), Next::Little(ms), Next::Nothing]);
    let rounds = nexts.into_iter().flatten().map(Iteration::Round);
    let others = [true, false].map(|watches| Iteration::NotCoordinating { watches });
    for iteration in rounds.chain(others).chain([Iteration::MustEnd]) {
        for idle_ms in [0, 1, 4999, 9_999, 10_000, 10_001, u64::MAX] {
            // Who has found much has just worked.
            if found_much(iteration) && idle_ms > 0 {
                continue;
            }
            assert_eq!(
                iteration.sleep(idle_ms),
                before(iteration, idle_ms),
                "{iteration:?} {idle_ms}"
            );
        }
    }
}

fn found_much(iteration: Iteration) -> bool {
    matches!(iteration, Iteration::Round(Next::Much(_)))
}

#[test]
fn above_the_owners_limit_caches_are_drained_if_they_have_half_of_it() {
    use LimitPlan::*;
    for (cached, in_spans, expected) in [
        (0, 0, Nothing),
        (100, 0, Nothing),
        (60, 40, Nothing),
        (101, 0, CachesAndSpans),
        (50, 51, Spans),
        (51, 50, CachesAndSpans),
        (0, 101, Spans),
    ] {
        assert_eq!(
            limit(cached, in_spans, 100),
            expected,
            "{cached} {in_spans}"
        );
    }
    assert_eq!(limit(1, 0, 0), CachesAndSpans);
    assert_eq!(limit(0, 1, 0), Spans);
}
