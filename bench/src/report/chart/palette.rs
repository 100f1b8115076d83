//! The colours of charts. Each is drawn as it looks on white, and a style sheet
//! replaces it where the reader prefers dark pages.

use plotters::style::RGBColor;

/// One and the same thing on a light and on a dark page.
#[derive(Debug, Clone, Copy)]
pub struct Colour {
    pub light: RGBColor,
    pub dark: RGBColor,
}

const fn colour(light: u32, dark: u32) -> Colour {
    Colour {
        light: rgb(light),
        dark: rgb(dark),
    }
}

const fn rgb(hex: u32) -> RGBColor {
    let [_, red, green, blue] = hex.to_be_bytes();
    RGBColor(red, green, blue)
}

pub const BACKGROUND: Colour = colour(0xFF_FF_FF, 0x16_1B_22);
pub const TEXT: Colour = colour(0x1F_23_28, 0xE6_ED_F3);
pub const FAINT_TEXT: Colour = colour(0x57_60_6A, 0x9D_A7_B3);
pub const AXIS: Colour = colour(0x8C_95_9F, 0x6E_76_81);
pub const GRID: Colour = colour(0xE1_E4_E8, 0x2D_33_3B);

/// Of the targets, the baseline first. Okabe and Ito's colours, which people with
/// any kind of colour vision can tell apart, made darker or lighter where they would
/// not stand out from the page.
pub const CURVES: [Colour; 6] = [
    colour(0xC2_52_00, 0xFF_9A_4D),
    colour(0x00_72_B2, 0x56_B4_E9),
    colour(0x00_80_5E, 0x2F_C7_9E),
    colour(0x9C_45_7E, 0xE0_9B_C6),
    colour(0x73_65_00, 0xE5_D6_3A),
    colour(0x4B_50_57, 0xC4_CB_D3),
];

/// Makes the colours of an `<svg class="chart">` follow what the reader prefers.
pub fn style_sheet() -> String {
    // A text that stands on a line can be read.
    let halo = |background| {
        let background = hex(background);
        format!(
            ".chart text{{paint-order:stroke;stroke:{background};stroke-width:40px;stroke-linejoin:round}}"
        )
    };
    let mut rules = halo(BACKGROUND.dark);
    for Colour { light, dark } in [BACKGROUND, TEXT, FAINT_TEXT, AXIS, GRID]
        .iter()
        .chain(&CURVES)
    {
        let (light, dark) = (hex(*light), hex(*dark));
        for attribute in ["fill", "stroke"] {
            rules.push_str(&format!(
                ".chart [{attribute}=\"{light}\"]{{{attribute}:{dark}}}"
            ));
        }
    }
    let light = halo(BACKGROUND.light);
    format!("{light}@media (prefers-color-scheme:dark){{{rules}}}")
}

/// As plotters writes it.
pub fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contrast as WCAG 2 defines it.
    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            let [red, green, blue] = [red, green, blue].map(|channel| {
                let channel = f64::from(channel) / 255.0;
                if channel <= 0.040_45 {
                    channel / 12.92
                } else {
                    ((channel + 0.055) / 1.055).powf(2.4)
                }
            });
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn everything_stands_out_from_the_page() {
        assert_eq!(contrast(rgb(0), rgb(0xFF_FF_FF)).round(), 21.0);
        let lines = CURVES.iter().map(|curve| (curve, 4.5));
        let texts = [(&TEXT, 7.0), (&FAINT_TEXT, 4.5)];
        for (colour, least) in lines.chain(texts) {
            let light = contrast(colour.light, BACKGROUND.light);
            let dark = contrast(colour.dark, BACKGROUND.dark);
            assert!(light.min(dark) >= least, "{colour:?}: {light}, {dark}");
        }
    }

    #[test]
    fn no_two_things_have_the_same_colour() {
        let mut all: Vec<String> = [BACKGROUND, TEXT, FAINT_TEXT, AXIS, GRID]
            .iter()
            .chain(&CURVES)
            .map(|colour| hex(colour.light))
            .collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
