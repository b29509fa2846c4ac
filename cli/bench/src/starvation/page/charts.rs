//! The pictures of a report's page.
//!
//! Colours are Okabe and Ito's, which people tell apart who see colours otherwise.

use std::collections::BTreeMap;
use std::fmt::Display;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::Cause;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use crate::contest::{level, spread};
use crate::spread::Spread;
use crate::starvation::report::{AcceleratorReport, EpochReport};
use crate::starvation::search::Held;

/// Pixels of a picture.
const SIZE: (u32, u32) = (900, 320);

/// A timeline has so many columns: three pixels each.
const COLUMNS: usize = 280;

const TEXT: (&str, u32) = ("sans-serif", 14);

/// A scale of percent that leaves room for the bars' names.
const NAMES: f64 = 112.0;

/// Room for labels on the left and below, in pixels.
const LABELS: (u32, u32) = (55, 35);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One of the pictures of rivals.
pub(super) struct Chart {
    pub(super) caption: String,
    pub(super) picture: String,
}

fn color(cause: Cause) -> RGBColor {
    match cause {
        Cause::Origin => RGBColor(213, 94, 0),
        Cause::Index => RGBColor(240, 228, 66),
        Cause::TierRead => RGBColor(0, 114, 178),
        Cause::RingEmpty => RGBColor(204, 121, 167),
        Cause::Decode => RGBColor(230, 159, 0),
        Cause::H2d => RGBColor(86, 180, 233),
        Cause::Slab => RGBColor(110, 110, 110),
        Cause::Peer => RGBColor(128, 0, 64),
    }
}

const COMPUTING: RGBColor = RGBColor(0, 158, 115);

fn picture(draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| undrawn(&*error))?;
    }
    Ok(svg)
}

fn undrawn(error: &dyn Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("a picture cannot be drawn: {error}"))
}

/// Draws the accelerators' time by use, a bar for each epoch.
pub(super) fn causes(epochs: &[EpochReport]) -> Result<String> {
    picture(|area| {
        let bars = epochs.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(LABELS.1)
            .y_label_area_size(LABELS.0)
            .build_cartesian_2d(0.0..bars * 1.4, 0.0..NAMES)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .label_style(TEXT)
            .x_labels(0)
            .y_desc("percent of the time")
            .draw()?;
        let mut floors = vec![0.0; epochs.len()];
        let waited = |cause: Cause| move |epoch: &EpochReport| epoch.wait.of_cause(cause.name());
        let mut layer = |name: &str, color: RGBColor, share: &dyn Fn(&EpochReport) -> f64| {
            let bars = epochs.iter().enumerate().map(|(at, epoch)| {
                let (left, floor) = (at as f64, floors[at]);
                floors[at] += 100.0 * share(epoch);
                Rectangle::new([(left + 0.15, floor), (left + 0.85, floors[at])], color.filled())
            });
            let bars: Vec<_> = bars.collect();
            let drawn = chart.draw_series(bars)?;
            drawn.label(name).legend(key(color));
            Drawn::Ok(())
        };
        layer("computing", COMPUTING, &|epoch| epoch.au_ideal.min(1.0))?;
        for cause in Cause::ALL {
            let seconds = waited(cause);
            let all = |epoch: &EpochReport| epoch.wall_seconds * epoch.accelerators.len() as f64;
            layer(cause.name(), color(cause), &|epoch| seconds(epoch) / all(epoch))?;
        }
        let names = epochs.iter().enumerate().map(|(at, epoch)| {
            let name = format!("epoch {} ({})", epoch.epoch, epoch.temperature);
            Text::new(name, (at as f64 + 0.15, NAMES - 2.0), TEXT)
        });
        chart.draw_series(names)?;
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// Share of time waited, by cause, along an epoch, and how many batches were ready.
pub(super) fn timeline(accelerator: &AcceleratorReport) -> Result<String> {
    let raw = &accelerator.raw;
    let end = raw.at_seconds.last().copied().unwrap_or_default().max(f64::MIN_POSITIVE);
    let width = end / COLUMNS as f64;
    let column = |at: f64| ((at / width) as usize).min(COLUMNS - 1);
    // A wait lies before its batch, and may reach over many columns.
    let mut waited = vec![[0.0; Cause::ALL.len()]; COLUMNS];
    for (step, (&at, &wait)) in raw.at_seconds.iter().zip(&raw.wait_seconds).enumerate() {
        let begin = (at - wait).max(0.0);
        let first = column(begin);
        for (number, shares) in waited.iter_mut().enumerate().take(column(at) + 1).skip(first) {
            let (left, right) = (number as f64 * width, (number + 1) as f64 * width);
            let part = (right.min(at) - left.max(begin)).max(0.0) / wait.max(f64::MIN_POSITIVE);
            for (sum, cause) in shares.iter_mut().zip(&raw.by_cause) {
                *sum += part * cause[step] / width;
            }
        }
    }
    let most = raw.ready.iter().copied().max().unwrap_or_default().max(1);
    picture(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(LABELS.1)
            .y_label_area_size(LABELS.0)
            .right_y_label_area_size(LABELS.0)
            .build_cartesian_2d(0.0..end, 0.0..100.0)?
            .set_secondary_coord(0.0..end, 0.0..most as f64 * 1.05);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .label_style(TEXT)
            .x_desc("seconds")
            .y_desc("percent of the time waited")
            .draw()?;
        chart.configure_secondary_axes().label_style(TEXT).y_desc("batches ready").draw()?;
        let mut floors = vec![0.0_f64; COLUMNS];
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            let bars = waited.iter().enumerate().filter_map(|(at, shares)| {
                let floor = floors[at];
                floors[at] = (floor + 100.0 * shares[number]).min(100.0);
                let (left, right) = (at as f64 * width, (at + 1) as f64 * width);
                let corners = [(left, floor), (right, floors[at])];
                (floors[at] > floor).then(|| Rectangle::new(corners, color(cause).filled()))
            });
            let bars: Vec<_> = bars.collect();
            let is_there = !bars.is_empty();
            let drawn = chart.draw_series(bars)?;
            if is_there {
                drawn.label(cause.name()).legend(key(color(cause)));
            }
        }
        let ready = raw.at_seconds.iter().zip(&raw.ready).map(|(at, ready)| (*at, *ready as f64));
        let drawn = chart.draw_secondary_series(LineSeries::new(thinned(ready), BLACK))?;
        drawn
            .label("batches ready")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 12, y)], BLACK));
        chart
            .configure_series_labels()
            .label_font(TEXT)
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK)
            .draw()?;
        Ok(())
    })
}

/// As many points as a picture shows, the lowest of each column.
fn thinned(points: impl Iterator<Item = (f64, f64)> + Clone) -> Vec<(f64, f64)> {
    let count = points.clone().count();
    let each = count.div_ceil(COLUMNS).max(1);
    let points: Vec<_> = points.collect();
    let lowest = |part: &[(f64, f64)]| {
        part.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default()
    };
    points.chunks(each).map(lowest).collect()
}

/// AU by speed, and the target.
pub(super) fn search(held: &Held) -> Result<String> {
    let tried = held.trials.iter().filter_map(|trial| Some((trial.speed?, 100.0 * trial.au_ideal)));
    let points: Vec<_> = tried.collect();
    let fastest = points.iter().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    picture(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(LABELS.1)
            .y_label_area_size(LABELS.0)
            .build_cartesian_2d(0.0..fastest, 0.0..105.0)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .label_style(TEXT)
            .x_desc("accelerators asked for")
            .y_desc("AU_ideal, percent")
            .draw()?;
        let target = 100.0 * held.target;
        let line = PathElement::new([(0.0, target), (fastest, target)], BLACK.stroke_width(1));
        chart
            .draw_series([line])?
            .label("target")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 12, y)], BLACK));
        let dots = points.iter().map(|point| Circle::new(*point, 4, COMPUTING.filled()));
        chart.draw_series(dots)?.label("trial").legend(key(COMPUTING));
        legend(&mut chart, SeriesLabelPosition::LowerLeft)
    })
}

/// Loaders side by side, medians with their lowest and highest rounds; one picture for each kind of
/// storage.
pub(super) fn rivals(contest: &Value) -> Result<Vec<Chart>> {
    let mut kinds: BTreeMap<&str, Vec<Bar>> = BTreeMap::new();
    for one in contest["contenders"].as_array().into_iter().flatten() {
        if let Some(bar) = Bar::of(one) {
            kinds.entry(level(one)).or_default().push(bar);
        }
    }
    let chart = |(storage, bars): (&str, Vec<Bar>)| {
        let caption =
            format!("Samples a second, medians with lowest and highest round; data in: {storage}.");
        Ok(Chart { caption, picture: bars_with_spread(&bars)? })
    };
    kinds.into_iter().map(chart).collect()
}

struct Bar {
    name: String,
    rate: Spread,
}

impl Bar {
    fn of(contender: &Value) -> Option<Self> {
        let rate = spread(contender, "samples_per_second")?;
        Some(Self { name: contender["name"].as_str()?.to_owned(), rate })
    }
}

fn bars_with_spread(bars: &[Bar]) -> Result<String> {
    let highest = bars.iter().map(|bar| bar.rate.highest).fold(f64::MIN_POSITIVE, f64::max) * 1.15;
    picture(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(LABELS.1)
            .y_label_area_size(LABELS.0 + 20)
            .build_cartesian_2d(0.0..bars.len() as f64, 0.0..highest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .label_style(TEXT)
            .x_labels(0)
            .y_desc("samples/s")
            .draw()?;
        let filled = bars.iter().enumerate().map(|(at, bar)| {
            let left = at as f64;
            let color =
                if bar.name.starts_with("forebay") { COMPUTING } else { RGBColor(120, 120, 120) };
            Rectangle::new([(left + 0.2, 0.0), (left + 0.8, bar.rate.median)], color.filled())
        });
        chart.draw_series(filled)?;
        let spread = bars.iter().enumerate().map(|(at, bar)| {
            let middle = at as f64 + 0.5;
            PathElement::new(
                [(middle, bar.rate.lowest), (middle, bar.rate.highest)],
                BLACK.stroke_width(2),
            )
        });
        chart.draw_series(spread)?;
        let names = bars
            .iter()
            .enumerate()
            .map(|(at, bar)| Text::new(bar.name.clone(), (at as f64 + 0.1, highest * 0.98), TEXT));
        chart.draw_series(names)?;
        Ok(())
    })
}

fn key(color: RGBColor) -> impl Fn((i32, i32)) -> Rectangle<(i32, i32)> {
    move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled())
}

type Plain<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn legend<'a, 'b: 'a>(chart: &mut Plain<'a, 'b>, place: SeriesLabelPosition) -> Drawn {
    chart
        .configure_series_labels()
        .label_font(TEXT)
        .position(place)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_client::WaitReport;

    use super::*;
    use crate::starvation::raw::Raw;
    use crate::starvation::report::{EpochWaits, Temperature};
    use crate::tier_reads::TierReads;

    fn contender(name: &str, storage: &str, rates: [f64; 3]) -> Value {
        let rounds = rates.map(|rate| serde_json::json!({ "samples_per_second": rate }));
        serde_json::json!({ "name": name, "storage": storage, "rounds": rounds })
    }

    /// The value of an attribute of each element of this picture that begins so.
    fn of_each(picture: &str, element: &str, attribute: &str) -> Vec<String> {
        let quoted = format!(" {attribute}=\"");
        let elements = picture.split('<').filter(|text| text.starts_with(element));
        let values = elements.map(|text| text.split_once(&quoted).unwrap().1);
        values.map(|rest| rest.split_once('"').unwrap().0.to_owned()).collect()
    }

    #[test]
    fn bars_are_grouped_by_storage_and_scaled_by_rate() {
        let document = serde_json::json!({ "contenders": [
            contender("forebay", "o_direct", [80.0, 90.0, 100.0]),
            contender("forebay-memory", "memory", [900.0, 1200.0, 1000.0]),
            contender("webdataset", "page_cache", [500.0, 400.0, 510.0]),
            serde_json::json!({ "name": "spdl", "storage": "page_cache", "rounds": [] }),
        ] });
        let charts = rivals(&document).unwrap();
        assert_eq!(charts.len(), 2);
        let (disk, memory) = (&charts[0], &charts[1]);
        assert!(disk.caption.contains("a disk") && memory.caption.contains("memory"));
        assert!(!disk.picture.contains("webdataset") && memory.picture.contains("webdataset"));
        assert!(!memory.picture.contains("spdl"), "who has no round has no bar");

        let picture = &memory.picture;
        let number = |text: &String| text.parse::<f64>().unwrap();
        let heights: Vec<_> = of_each(picture, "rect", "height")
            .iter()
            .map(number)
            .filter(|tall| *tall > 10.0)
            .collect();
        let [ours, other] = heights[..] else { panic!("two bars: {picture}") };
        assert!((ours / other - 2.0).abs() < 0.05, "medians of 1000 and 500: {ours} and {other}");
        // From the lowest round to the highest, as many pixels a sample as the bar has.
        let thick = picture.split('<').filter(|text| text.contains("stroke-width=\"2\""));
        let spreads: Vec<f64> = thick
            .map(|text| {
                let points = text.split_once("points=\"").unwrap().1.split('"').next().unwrap();
                let ys = points.split_whitespace().map(|point| point.split_once(',').unwrap().1);
                let ys: Vec<f64> = ys.map(|y| y.parse().unwrap()).collect();
                ys[0] - ys[1]
            })
            .collect();
        assert_eq!(spreads.len(), 2);
        assert!((spreads[0] / ours - 0.3).abs() < 0.02, "900 to 1200: {spreads:?}");
        assert!((spreads[1] / other - 0.22).abs() < 0.02, "400 to 510: {spreads:?}");
    }

    /// Colour, left edge, width and height of each bar, but for the keys of the legend.
    fn bars(picture: &str) -> Vec<(String, f64, f64, f64)> {
        let of = |attribute| {
            let values = of_each(picture, "rect", attribute).into_iter();
            values.map(|value| value.parse::<f64>().unwrap()).collect::<Vec<_>>()
        };
        let (lefts, widths, heights) = (of("x"), of("width"), of("height"));
        let fills = of_each(picture, "rect", "fill");
        let all = fills.into_iter().zip(lefts).zip(widths.into_iter().zip(heights));
        let all = all.map(|((fill, left), (width, height))| (fill, left, width, height));
        all.filter(|(.., width, height)| (*width, *height) != (12.0, 10.0)).collect()
    }

    fn hex(color: RGBColor) -> String {
        format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
    }

    fn accelerator(raw: Raw) -> AcceleratorReport {
        AcceleratorReport {
            rank: 0,
            au_ideal: 0.5,
            au_dlio: 0.5,
            steps: raw.at_seconds.len() as u64,
            wall_seconds: 10.0,
            first_batch_seconds: 0.0,
            first_step_seconds: 0.0,
            whole_seconds: 10.0,
            raw,
        }
    }

    fn epoch(number: u64, au_ideal: f64, waited: &[(Cause, f64)]) -> EpochReport {
        let seconds = |cause: Cause| {
            let of = waited.iter().filter(|(of, _)| *of == cause);
            (cause.name(), of.map(|(_, seconds)| seconds).sum())
        };
        EpochReport {
            epoch: number,
            temperature: Temperature::Cold,
            steps: 10,
            samples: 10,
            wall_seconds: 10.0,
            au_ideal,
            au_measured: au_ideal,
            au_dlio: au_ideal,
            first_batch_seconds: 0.0,
            samples_per_second: 1.0,
            bytes_per_second: 1.0,
            cpu_ms_per_sample: 1.0,
            fetched_bytes: 0,
            delivered_bytes: 0,
            tier_bytes: 0,
            origin_bytes: 0,
            by_tier: TierReads::default(),
            saves: None,
            slowest: Vec::new(),
            wait: EpochWaits {
                summary: WaitReport {
                    count: 10,
                    by_cause: Cause::ALL.map(seconds).to_vec(),
                    ..WaitReport::default()
                },
                measured_seconds: 0.0,
                stall_share_of_step: 0.1,
                stalls: 0,
            },
            accelerators: vec![accelerator(Raw::default()), accelerator(Raw::default())],
        }
    }

    /// Each layer of two accelerators' twenty seconds is scaled by its share and stacked.
    #[test]
    fn cause_bars_are_scaled_by_their_share() {
        let epochs = [
            epoch(0, 0.5, &[(Cause::Origin, 6.0), (Cause::Decode, 2.0)]),
            epoch(1, 0.25, &[(Cause::Decode, 10.0), (Cause::TierRead, 4.0)]),
        ];
        let picture = causes(&epochs).unwrap();
        let bars = bars(&picture);
        let of = |color: RGBColor| -> Vec<f64> {
            bars.iter().filter(|bar| bar.0 == hex(color)).map(|bar| bar.3).collect()
        };
        let computing = of(COMPUTING);
        assert_eq!(computing.len(), 2, "{bars:?}");
        let shares = [
            (COMPUTING, [50.0, 25.0]),
            (color(Cause::Origin), [30.0, 0.0]),
            (color(Cause::Index), [0.0, 0.0]),
            (color(Cause::TierRead), [0.0, 20.0]),
            (color(Cause::RingEmpty), [0.0, 0.0]),
            (color(Cause::Decode), [10.0, 50.0]),
        ];
        for (color, shares) in shares {
            for (tall, share) in of(color).into_iter().zip(shares) {
                let expected = computing[0] / 50.0 * share;
                assert!((tall - expected).abs() <= 2.0, "{color:?}: {tall} for {expected}");
            }
        }
        assert!(picture.contains("epoch 0 (cold)") && picture.contains("epoch 1 (cold)"));
    }

    /// Half of the first five seconds was waited, nothing of the last five; that share of the
    /// picture is filled, and there.
    #[test]
    fn timeline_is_filled_where_trainers_waited() {
        let mut raw = Raw::default();
        for step in 0..10_u32 {
            let is_late = step < 5;
            raw.at_seconds.push(f64::from(step + 1));
            raw.wait_seconds.push(if is_late { 0.5 } else { 0.0 });
            raw.ready.push(if is_late { 0 } else { 4 });
            for (cause, column) in Cause::ALL.into_iter().zip(&mut raw.by_cause) {
                let share = match cause {
                    Cause::Origin => 0.4,
                    Cause::Decode => 0.1,
                    _ => 0.0,
                };
                column.push(if is_late { share } else { 0.0 });
            }
        }
        let picture = timeline(&accelerator(raw)).unwrap();
        let bars = bars(&picture);
        // Width left for the plot.
        let width = f64::from(SIZE.0 - 20 - 2 * LABELS.0);
        let height = f64::from(SIZE.1 - 20 - LABELS.1);
        let filled = |color: RGBColor| {
            let of = bars.iter().filter(|bar| bar.0 == hex(color));
            of.map(|(_, _, wide, tall)| wide * tall).sum::<f64>() / (width * height)
        };
        let near = |found: f64, share: f64| (found - share).abs() <= 0.02;
        assert!(near(filled(color(Cause::Origin)), 0.2), "{}", filled(color(Cause::Origin)));
        assert!(near(filled(color(Cause::Decode)), 0.05), "{}", filled(color(Cause::Decode)));
        let middle = f64::from(10 + LABELS.0) + width / 2.0;
        let colors = Cause::ALL.map(|cause| hex(color(cause)));
        let waits: Vec<_> = bars.iter().filter(|bar| colors.contains(&bar.0)).collect();
        assert!(!waits.is_empty() && waits.iter().all(|bar| bar.1 <= middle + 2.0), "{waits:?}");
        assert!(picture.contains("batches ready") && !picture.contains(Cause::Index.name()));
    }
}
