//! How long families take: as a rule, and here.

use std::time::Duration;

use crate::harness::progress::minutes;

/// What was measured so far, in the time that it takes as a rule, and in what it took.
#[derive(Debug, Default)]
pub struct Pace {
    usual_s: f64,
    took_s: f64,
}

impl Pace {
    /// A family has been measured.
    pub fn note(&mut self, usual_s: Option<f64>, took_s: f64) {
        if let Some(usual_s) = usual_s {
            self.usual_s += usual_s;
            self.took_s += took_s;
        }
    }

    /// How long that will take here.
    pub fn of(&self, usual_s: Option<f64>) -> Option<f64> {
        let is_known = self.usual_s > 0.0;
        usual_s.map(|s| {
            if is_known {
                s / self.usual_s * self.took_s
            } else {
                s
            }
        })
    }

    /// Why a family is not begun when so much time is left.
    pub fn no_room(&self, usual_s: Option<f64>, room: Option<Duration>) -> Option<String> {
        let room_s = room?.as_secs_f64();
        let needed_s = self.of(usual_s).unwrap_or(1.0);
        (needed_s > room_s).then(|| {
            let (needed, left) = (minutes(needed_s), minutes(room_s));
            format!("it takes about {needed}, and --time-limit leaves {left}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_corrects_what_is_usual() {
        let mut pace = Pace::default();
        assert_eq!(pace.of(Some(60.0)), Some(60.0));
        pace.note(Some(10.0), 20.0);
        pace.note(None, 1000.0);
        assert_eq!((pace.of(Some(60.0)), pace.of(None)), (Some(120.0), None));
        let room = |s| Some(Duration::from_secs(s));
        assert_eq!(pace.no_room(Some(60.0), None), None);
        assert_eq!(pace.no_room(Some(60.0), room(120)), None);
        let told = pace.no_room(Some(60.0), room(90)).unwrap();
        assert!(told.contains("2 min") && told.contains("90 s"), "{told}");
        // Where nothing is known of a family, only the end of the time keeps it from beginning.
        assert_eq!(pace.no_room(None, room(5)), None);
        assert!(pace.no_room(None, room(0)).is_some());
    }
}
