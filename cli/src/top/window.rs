//! The lines of a screen that a terminal has room for.
//!
//! Its rule: what is not seen is told of, with how to see it.

use super::screen::{Line, Look};

/// Where somebody wants to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// Which lines are seen.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The first of them.
    first: usize,
    /// How many there were room for, and how many there are.
    room: usize,
    lines: usize,
}

impl Window {
    pub(super) fn goes(&mut self, way: Way) {
        self.first = match way {
            Way::Up => self.first.saturating_sub(1),
            Way::Down => self.first + 1,
            Way::PageUp => self.first.saturating_sub(self.room),
            Way::PageDown => self.first + self.room,
            Way::First => 0,
            Way::Last => self.lines,
        };
        self.keeps_within();
    }

    /// Behind the last line there is nothing to see.
    fn keeps_within(&mut self) {
        self.first = self.first.min(self.lines.saturating_sub(self.room));
    }

    /// What is seen of these lines in a terminal of this size: all of them, or some and a word on the others.
    pub(super) fn of(&mut self, lines: &[Line], height: usize, width: usize) -> Vec<Line> {
        self.lines = lines.len();
        // A line is for the word.
        self.room = if self.lines <= height { height } else { height.saturating_sub(1) };
        self.keeps_within();
        let mut seen: Vec<_> = lines.iter().skip(self.first).take(self.room).cloned().collect();
        if self.lines > height {
            let (first, last) = (self.first + 1, self.first + seen.len());
            let word = format!(
                "lines {first} to {last} of {}; arrows, PgUp, PgDn: more, q: end",
                self.lines
            );
            seen.push(Line::fitting(&word, Look::Aside, width));
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(window: &mut Window, lines: usize, height: usize) -> Vec<String> {
        let lines: Vec<_> =
            (1..=lines).map(|n| Line { text: n.to_string(), look: Look::Plain }).collect();
        window.of(&lines, height, 80).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn all_lines_can_be_seen() {
        let mut window = Window::default();
        assert_eq!(seen(&mut window, 3, 3), ["1", "2", "3"]);
        window.goes(Way::Down);
        assert_eq!(seen(&mut window, 3, 3), ["1", "2", "3"], "there is no more");
        let word = |first: usize, last: usize| {
            format!("lines {first} to {last} of 10; arrows, PgUp, PgDn: more, q: end")
        };
        assert_eq!(seen(&mut window, 10, 4), ["1", "2", "3", &word(1, 3)]);
        for (way, first) in [
            (Way::Up, 1),
            (Way::Down, 2),
            (Way::PageDown, 5),
            (Way::PageDown, 8),
            (Way::PageDown, 8),
            (Way::Up, 7),
            (Way::PageUp, 4),
            (Way::First, 1),
            (Way::Last, 8),
            (Way::Down, 8),
        ] {
            window.goes(way);
            let last = first + 2;
            let lines: Vec<_> =
                (first..=last).map(|n| n.to_string()).chain([word(first, last)]).collect();
            assert_eq!(seen(&mut window, 10, 4), lines, "{way:?}");
        }
        // Where there is more room, or there are fewer lines, nothing is left empty without need.
        assert_eq!(seen(&mut window, 10, 12).len(), 10);
        assert_eq!(seen(&mut window, 2, 12), ["1", "2"]);
    }

    #[test]
    fn no_terminal_is_too_small() {
        let mut window = Window::default();
        for height in 0..3 {
            assert!(seen(&mut window, 10, height).len() <= height.max(1));
        }
    }
}
