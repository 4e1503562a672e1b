//! A flame graph as SVG, with the outermost calls at the top. The crate `inferno` draws it; its colours here have a light and a dark form.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use inferno::flamegraph::color::BasicPalette;
use inferno::flamegraph::{Direction, Options, Palette, TextTruncateDirection, from_lines};

use super::model::{Profile, View};

/// Added to inferno's own style.
const STYLE: &str = "
#background stop { stop-color:#fff; }
text { fill:#111; }
#title { font-size:14px; }
#frames text { fill:#000; }
#search { opacity:0.6; }
#frames > *:hover { stroke:#111; }
@media (prefers-color-scheme: dark) {
#background stop { stop-color:#16181c; }
text { fill:#e6e6e6; }
#frames > *:hover { stroke:#e6e6e6; }
#frames rect { filter:brightness(0.85); }
}
";

/// The picture. With a profile from `before`, widths are those of now, and colours say what grew (red) and shrank (blue).
pub fn draw(
    profile: &Profile,
    before: Option<&Profile>,
    view: View,
    titles: [&str; 2],
) -> Result<String> {
    let mut stacks: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (at, profile) in [Some(profile), before].into_iter().enumerate() {
        let Some(profile) = profile else { continue };
        for stack in &profile.stacks {
            let bytes = stack.amounts[view as usize].bytes.round().max(0.0) as u64;
            stacks.entry(folded(profile, stack)).or_default()[at] += bytes;
        }
    }
    let lines: Vec<String> = stacks
        .iter()
        .map(|(stack, [now, then])| match before {
            Some(_) => format!("{stack} {then} {now}"),
            None => format!("{stack} {now}"),
        })
        .collect();
    let mut options = Options::default();
    options.title = titles[0].into();
    options.subtitle = Some(titles[1].into());
    options.direction = Direction::Inverted;
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    options.count_name = "bytes".into();
    options.frame_height = 20;
    options.font_size = 13;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .context("the flame graph cannot be drawn")?;
    let svg = String::from_utf8(svg).context("the flame graph has strange names")?;
    Ok(svg.replacen("</style>", &format!("{STYLE}</style>"), 1))
}

/// The functions of a stack in a line, the outermost first.
fn folded(profile: &Profile, stack: &super::model::Stack) -> String {
    // A semicolon ends a name there.
    let names = profile.lines(stack).rev();
    let names: Vec<String> = names.map(|line| line.function.replace(';', ",")).collect();
    match names.is_empty() {
        true => "unknown".into(),
        false => names.join(";"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::tests::profile;

    fn draw_all(profile: &Profile, before: Option<&Profile>) -> String {
        draw(profile, before, View::Live, ["a title", "a subtitle"]).unwrap()
    }

    #[test]
    fn frames_have_their_bytes() {
        let svg = draw_all(
            &profile(&[
                (&["keep<[u8; 4]>", "main"], 1 << 30, [3, 3, 3]),
                (&["free", "main"], 1 << 30, [1, 9, 1]),
            ]),
            None,
        );
        assert!(
            svg.contains("keep&lt;[u8, 4]&gt; (3,221,225,472 bytes, 75.00%)"),
            "{svg}"
        );
        assert!(svg.contains("main (4,294,967,296 bytes, 100.00%)"), "{svg}");
        assert!(svg.contains("a title") && svg.contains("a subtitle"));
    }

    #[test]
    fn dark_pages_have_a_dark_picture() {
        let svg = draw_all(&profile(&[(&["main"], 64, [1, 1, 1])]), None);
        let (style, rest) = svg.split_once("</style>").unwrap();
        assert!(style.contains("prefers-color-scheme: dark") && !rest.contains("prefers-color"));
    }

    #[test]
    fn a_difference_has_both() {
        let old = profile(&[(&["keep"], 1 << 30, [1, 1, 1])]);
        let new = profile(&[(&["keep"], 1 << 30, [3, 3, 3])]);
        let svg = draw_all(&new, Some(&old));
        assert!(
            svg.contains("3,221,225,472 bytes, 100.00%; +66.67%"),
            "{svg}"
        );
    }
}
