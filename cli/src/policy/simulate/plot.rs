//! A simulation's figures as a picture.

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::Evict;
use forebay_policy::simulate::{Report, Trace};
use plotters::prelude::*;

use super::summary;

/// Pixels of the picture.
const SIZE: (u32, u32) = (900, 480);

/// Draws how busy jobs are under each policy, and what each finds in the cache.
pub(super) fn draw(path: &Path, trace: &Trace, reports: &[(Evict, Report)]) -> Result<()> {
    picture(path, trace, reports).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the picture cannot be written: {error}"))
            .at("file", path.display())
            .advise("name a file in a folder that may be written to")
    })
}

fn picture(
    path: &Path,
    trace: &Trace,
    reports: &[(Evict, Report)],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let policies = reports.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .caption(summary(trace), ("sans-serif", 16))
        .margin(20)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..policies, 0.0..100.0)?;
    let name = |at: &f64| match reports.get(*at as usize) {
        Some((policy, _)) if at.fract() > 0.4 && at.fract() < 0.6 => policy.name().to_owned(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * reports.len() + 1)
        .x_label_formatter(&name)
        .y_desc("percent")
        .draw()?;
    let bars = |from: f64, to: f64, color: RGBColor, value: &dyn Fn(&Report) -> f64| {
        let bar = |(at, (_, report)): (usize, &(Evict, Report))| {
            let (left, right) = (at as f64 + from, at as f64 + to);
            Rectangle::new([(left, 0.0), (right, 100.0 * value(report))], color.filled())
        };
        reports.iter().enumerate().map(bar).collect::<Vec<_>>()
    };
    // Told apart by those who do not see colours, too: one is much darker.
    let (busy, hits) = (RGBColor(0, 90, 140), RGBColor(240, 180, 90));
    let key = |color: RGBColor| {
        move |(x, y): (i32, i32)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled())
    };
    let drawn = chart.draw_series(bars(0.15, 0.48, busy, &Report::busy_share))?;
    drawn.label("GPUs busy").legend(key(busy));
    let drawn = chart.draw_series(bars(0.52, 0.85, hits, &|report| report.hit_ratio))?;
    drawn.label("found in the cache").legend(key(hits));
    let bound = 100.0 * trace.bound();
    let line = PathElement::new([(0.0, bound), (policies, bound)], BLACK.stroke_width(2));
    let drawn = chart.draw_series([line])?;
    drawn.label("bound").legend(|(x, y)| PathElement::new([(x, y), (x + 12, y)], BLACK));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
