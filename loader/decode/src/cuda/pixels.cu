// Decoded planes to tensor elements, in one pass: chroma upsampling, colour, crop, resize, mirroring, scaling,
// normalising, type and layout.
//
// Its rule: whole numbers only, and those of the CPU path. Colours are spread and converted as libjpeg does by default,
// the resize filter has the CPU's weights in the CPU's order (columns of pixels first, each rounded to 8 bits, then
// rows), and what a value becomes is looked up in the CPU's own table. So the same planes give the same elements to the
// bit, on every device and on none: the same source is compiled for the CPU in tests.
//
// After a change: `make ptx`.

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef short int16_t;
typedef int int32_t;
#define INLINE __device__ __forceinline__
#else
#include <stdint.h>
#define INLINE static inline
#endif

// Columns of the result that one thread makes of a row: neighbours share most of what they are made of.
#define STRIP 4

#define CHANNELS 3

// One component as it was decoded.
struct Plane {
    const uint8_t *at;
    uint32_t pitch;
    uint32_t width;
    uint32_t height;
    uint32_t unused;
};

// Which pixels one row or column of the result is made of: `count` from `first` on, weighted by those at `weights`.
struct Window {
    uint32_t first;
    uint32_t count;
    uint32_t weights;
};

// One side of the result.
struct Axis {
    const struct Window *windows;
    const int16_t *weights;
    uint32_t length;
    // The weights of a window add up to about 1 << precision.
    uint32_t precision;
};

// One result and the image it is made of.
struct View {
    struct Plane planes[CHANNELS];
    struct Axis columns;
    struct Axis rows;
    uint8_t *out;
    // From element to element, in elements.
    uint64_t column_step;
    uint64_t row_step;
    uint64_t channel_step;
    // 1 where there is brightness alone.
    uint32_t components;
    // Pixels of the image per pixel of colour, 1 or 2.
    uint32_t across;
    uint32_t down;
    // How the image was held: whether its rows are the columns of the stored one, and what of the stored one is
    // mirrored.
    uint32_t swaps;
    uint32_t mirrors_rows;
    uint32_t mirrors_columns;
    // Whether the result is mirrored left to right.
    uint32_t flip;
    uint32_t unused;
};

struct Color {
    int32_t of[CHANNELS];
};

INLINE int32_t clipped(int32_t value) {
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

// The neighbour of column or row `at` of colour on the side where pixel `pixel` lies; at the edge, itself.
INLINE uint32_t neighbour(uint32_t at, uint32_t pixel, uint32_t end) {
    if (pixel & 1u) return at + 1 < end ? at + 1 : at;
    return at > 0 ? at - 1 : at;
}

// Colour at a pixel: three quarters of the nearest and one of the next, in each direction in which it was stored at
// half the resolution, rounded by turns up and down. What libjpeg calls fancy upsampling.
INLINE int32_t chroma(const struct Plane *plane, uint32_t across, uint32_t down, uint32_t x, uint32_t y) {
    const uint32_t column = across == 2 ? x >> 1 : x, row = down == 2 ? y >> 1 : y;
    const uint8_t *near = plane->at + (uint64_t)row * plane->pitch;
    // It does without where there is hardly a neighbour.
    const int is_wide = across == 2 && plane->width > 2;
    const int is_tall = down == 2 && (across == 1 || is_wide);
    const uint32_t beside = is_wide ? neighbour(column, x, plane->width) : column;
    if (!is_tall) {
        if (!is_wide || beside == column) return near[column];
        return (3 * near[column] + near[beside] + (x & 1u ? 2 : 1)) >> 2;
    }
    const uint8_t *next = plane->at + (uint64_t)neighbour(row, y, plane->height) * plane->pitch;
    const int32_t here = 3 * near[column] + next[column];
    if (!is_wide) return (here + (y & 1u ? 2 : 1)) >> 2;
    const int32_t there = 3 * near[beside] + next[beside];
    return (3 * here + there + (x & 1u ? 7 : 8)) >> 4;
}

// A pixel of the upright image: JFIF's conversion in 16 bits after the point.
INLINE struct Color color(const struct View *view, uint32_t x, uint32_t y) {
    const struct Plane *planes = view->planes;
    uint32_t column = view->swaps ? y : x, row = view->swaps ? x : y;
    if (view->mirrors_columns) column = planes[0].width - 1 - column;
    if (view->mirrors_rows) row = planes[0].height - 1 - row;
    const int32_t bright = planes[0].at[(uint64_t)row * planes[0].pitch + column];
    if (view->components == 1) return Color{{bright, bright, bright}};
    const int32_t blue = chroma(&planes[1], view->across, view->down, column, row) - 128;
    const int32_t red = chroma(&planes[2], view->across, view->down, column, row) - 128;
    const int32_t half = 1 << 15;
    return Color{{
        clipped(bright + ((91881 * red + half) >> 16)),
        clipped(bright + ((-46802 * red - 22554 * blue + half) >> 16)),
        clipped(bright + ((116130 * blue + half) >> 16)),
    }};
}

// Column `x` of the image as row `y` of the result has it.
INLINE struct Color column(const struct View *view, uint32_t x, uint32_t y) {
    const struct Window window = view->rows.windows[y];
    const int16_t *weights = view->rows.weights + window.weights;
    const int32_t half = (1 << view->rows.precision) >> 1;
    struct Color sum = {{half, half, half}};
    for (uint32_t k = 0; k < window.count; k++) {
        const struct Color pixel = color(view, x, window.first + k);
        for (int c = 0; c < CHANNELS; c++) sum.of[c] += weights[k] * pixel.of[c];
    }
    for (int c = 0; c < CHANNELS; c++) sum.of[c] = clipped(sum.of[c] >> view->rows.precision);
    return sum;
}

// The pixels of row `y` of the result from `x` on, as many as a strip has.
INLINE void strip(const struct View *view, const uint8_t *table, uint32_t element, uint32_t x, uint32_t y) {
    const struct Axis *columns = &view->columns;
    const int32_t half = (1 << columns->precision) >> 1;
    const uint32_t count = columns->length - x < STRIP ? columns->length - x : STRIP;
    struct Window windows[STRIP];
    struct Color sums[STRIP];
    uint32_t first = 0xffffffffu, end = 0;
#pragma unroll
    for (uint32_t k = 0; k < STRIP; k++) {
        sums[k] = Color{{half, half, half}};
        windows[k] = Window{0, 0, 0};
        if (k < count) windows[k] = columns->windows[x + k];
        if (windows[k].count > 0) {
            const uint32_t to = windows[k].first + windows[k].count;
            first = windows[k].first < first ? windows[k].first : first;
            end = to > end ? to : end;
        }
    }
    for (uint32_t at = first; at < end; at++) {
        const struct Color pixel = column(view, at, y);
#pragma unroll
        for (uint32_t k = 0; k < STRIP; k++) {
            // Wraps around before the window: no index of it.
            const uint32_t place = at - windows[k].first;
            if (place >= windows[k].count) continue;
            const int32_t weight = columns->weights[windows[k].weights + place];
            for (int c = 0; c < CHANNELS; c++) sums[k].of[c] += weight * pixel.of[c];
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < STRIP; k++) {
        if (k >= count) continue;
        const uint32_t to = view->flip ? columns->length - 1 - (x + k) : x + k;
        const uint64_t place = y * view->row_step + to * view->column_step;
        for (int c = 0; c < CHANNELS; c++) {
            const uint32_t value = c * 256 + clipped(sums[k].of[c] >> columns->precision);
            const uint64_t target = place + c * view->channel_step;
            if (element == 1) view->out[target] = table[value];
            else if (element == 2) ((uint16_t *)view->out)[target] = ((const uint16_t *)table)[value];
            else ((uint32_t *)view->out)[target] = ((const uint32_t *)table)[value];
        }
    }
}

// Bytes on their way from one place to another.
struct Move {
    const uint8_t *from;
    uint8_t *to;
};

struct alignas(16) Sixteen {
    uint64_t of[2];
};

// Every `step`-th piece of `length` bytes from piece `first` on.
#define MOVE(Piece) \
    for (uint64_t at = first; at < length / sizeof(Piece); at += step) ((Piece *)move->to)[at] = ((const Piece *)move->from)[at]

// A thread's share of a move, in the widest pieces that both places and the length allow.
INLINE void share(const struct Move *move, uint64_t length, uint64_t first, uint64_t step) {
    const uint64_t together = (uint64_t)move->from | (uint64_t)move->to | length;
    if (together % sizeof(Sixteen) == 0) MOVE(Sixteen);
    else if (together % sizeof(uint32_t) == 0) MOVE(uint32_t);
    else MOVE(uint8_t);
}

#ifdef __CUDACC_RTC__

// Each view by as many blocks as `blocks` says, its strips dealt out among them.
// grid: (blocks, views in this launch); block: any number of threads.
extern "C" __global__ void forebay_pixels(const struct View *views, const uint8_t *table, uint32_t element) {
    const struct View *view = &views[blockIdx.y];
    const uint32_t across = (view->columns.length + STRIP - 1) / STRIP;
    const uint64_t strips = (uint64_t)across * view->rows.length;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < strips; at += (uint64_t)gridDim.x * blockDim.x)
        strip(view, table, element, (uint32_t)(at % across) * STRIP, (uint32_t)(at / across));
}

// Each of the moves, all of `length` bytes, by as many blocks as `blocks` says.
// grid: (blocks, moves in this launch); block: any number of threads.
extern "C" __global__ void forebay_gather(const struct Move *moves, uint64_t length) {
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    share(&moves[blockIdx.y], length, first, (uint64_t)gridDim.x * blockDim.x);
}

#else

// The same for one view, strip after strip.
extern "C" void forebay_pixels(const struct View *view, const uint8_t *table, uint32_t element) {
    for (uint32_t y = 0; y < view->rows.length; y++)
        for (uint32_t x = 0; x < view->columns.length; x += STRIP) strip(view, table, element, x, y);
}

// The same for one move, by so many threads, one after the other.
extern "C" void forebay_gather(const struct Move *move, uint64_t length, uint64_t threads) {
    for (uint64_t thread = 0; thread < threads; thread++) share(move, length, thread, threads);
}

#endif
