//! Chart of figures by size.
//!
//! Both axes are logarithmic, so that a figure's exponent is the visible slope.

use std::path::Path;

use forebay_bench::growth::{Growth, Point};
use forebay_bench::scale::Report;
use forebay_error::{Error, ErrorKind, Result};
use plotters::prelude::*;

/// Pixels of one panel.
const PANEL: (u32, u32) = (640, 420);

/// Panels side by side.
const COLUMNS: usize = 2;

/// Colours that those who see few of them tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Draws the growth of all figures, those of one kind together.
pub(super) fn draw(path: &Path, report: &Report) -> Result<()> {
    picture(path, report).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the picture cannot be written: {error}"))
            .at("file", path.display())
            .advise("name a file in a folder that may be written to")
    })
}

fn picture<'a>(
    path: &'a Path,
    report: &Report,
) -> std::result::Result<(), Box<dyn std::error::Error + 'a>> {
    let panels: Vec<&[Growth]> = report.growths.chunk_by(|a, b| kind(a) == kind(b)).collect();
    let rows = panels.len().div_ceil(COLUMNS);
    // A handful of panels.
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (area, growths) in area.split_evenly((rows, COLUMNS)).iter().zip(panels) {
        panel(area, growths)?;
    }
    area.present()?;
    Ok(())
}

/// Returns a figure's subject: the first word of its name.
fn kind(growth: &Growth) -> &str {
    growth.name.split([' ', ':']).next().unwrap_or_default()
}

fn panel<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    growths: &[Growth],
) -> std::result::Result<(), Box<dyn std::error::Error + 'a>> {
    let points = || growths.iter().flat_map(|growth| &growth.points);
    let sizes = points().map(|point| point.size as f64);
    let values = points().map(|point| point.value);
    let Some(first) = growths.first() else { return Ok(()) };
    let (across, up) = (decades(sizes), decades(values));
    let mut chart = ChartBuilder::on(area)
        .caption(kind(first), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((across.0..across.1).log_scale(), (up.0..up.1).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(first.size)
        .y_desc("seconds")
        .x_label_formatter(&|size| format!("{size:.0e}"))
        .y_label_formatter(&|value| format!("{value:.0e}"))
        .draw()?;
    for (growth, color) in growths.iter().zip(COLORS.into_iter().cycle()) {
        let at = |point: &Point| (point.size as f64, point.value);
        let all: Vec<_> = growth.points.iter().map(at).collect();
        let exponent = growth.exponent.map_or("-".to_owned(), |exponent| format!("{exponent:.2}"));
        let line = PathElement::new(all.clone(), color.stroke_width(2));
        chart
            .draw_series([line])?
            .label(format!("{} (exponent {exponent})", growth.name))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
        chart.draw_series(all.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// Powers of ten around these: one at least lies between them.
fn decades(of: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = of
        .filter(|value| *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 {
        return (1.0, 10.0);
    }
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    (10_f64.powf(low), 10_f64.powf(high.max(low + 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_span_whole_powers_of_ten() {
        let near = |found: (f64, f64), low: f64, high: f64| {
            assert!((found.0 / low - 1.0).abs() < 1e-9 && (found.1 / high - 1.0).abs() < 1e-9);
        };
        near(decades([0.02, 3.0].into_iter()), 0.01, 10.0);
        near(decades([1.0].into_iter()), 1.0, 10.0);
        near(decades([0.0].into_iter()), 1.0, 10.0);
        near(decades([10.0, 1000.0].into_iter()), 10.0, 1000.0);
    }
}
