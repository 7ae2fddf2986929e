// The visible section of a timeline, between two positions on its axis.

const LEAST_MOMENTS = 6;

class View {
  constructor(timeline) {
    this.timeline = timeline;
    this.setAxis("event");
  }

  // By event, all allocations have the same width. By time, the width is the duration.
  setAxis(axis) {
    const { time, moments } = this.timeline;
    this.axis = axis;
    this.length = axis === "time" ? Math.max(1, time[moments - 1]) : moments;
    this.whole();
  }

  whole() {
    this.from = 0;
    this.to = this.length;
  }

  get span() {
    return this.to - this.from;
  }

  get isWhole() {
    return this.span >= this.length;
  }

  // Start of a moment on the axis.
  place(moment) {
    const { time, moments } = this.timeline;
    if (this.axis === "event") return moment;
    return moment < moments ? time[moment] : this.length;
  }

  // The last moment that starts at or before a position on the axis.
  momentAt(place) {
    const { time, moments } = this.timeline;
    if (this.axis === "event") return Math.max(0, Math.min(moments - 1, Math.floor(place)));
    let low = 0;
    let high = moments - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (time[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  zoom(factor, share = 0.5) {
    const least = Math.min(this.length, this.axis === "event" ? LEAST_MOMENTS : this.length / this.timeline.moments);
    const span = Math.max(least, Math.min(this.length, this.span * factor));
    this.show(this.from + share * (this.span - span), span);
  }

  pan(share) {
    this.show(this.from + share * this.span, this.span);
  }

  show(from, span) {
    this.from = Math.max(0, Math.min(this.length - span, from));
    this.to = this.from + span;
  }

  // Scrolls to a moment, centered if it was not visible.
  reveal(moment) {
    const place = this.place(moment);
    if (place < this.from || place >= this.to) this.show(place - this.span / 2, this.span);
  }

  // The moments of the whole window, independent of the view.
  wholeColumns(width) {
    const whole = new View(this.timeline);
    whole.setAxis(this.axis);
    return whole.columns(width);
  }

  // The moment with the most bytes for every pixel, so that no peak is lost.
  columns(width) {
    const { total } = this.timeline;
    const found = new Int32Array(width);
    let moment = this.momentAt(this.from);
    for (let x = 0; x < width; x++) {
      const last = this.momentAt(this.from + ((x + 1) * this.span) / width - 1e-9);
      let highest = moment;
      for (let m = moment; m <= last; m++) if (total[m] > total[highest]) highest = m;
      found[x] = highest;
      moment = Math.max(moment, last);
    }
    return found;
  }
}
