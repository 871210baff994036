// What every part uses: the data, text for people, colours of the theme in force, figures that are drawn when seen.

const DATA = JSON.parse(document.getElementById('data').textContent);
const state = {search: 0, visible: []};
const $ = (id) => document.getElementById(id);
const current = () => DATA.searches[state.search];
const MOST_POINTS = 2000; // points of one plot: of more, every second, third, … is drawn

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'class') node.className = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// --- text ---

const UNITS = [['s', 1], ['ms', 1e-3], ['µs', 1e-6], ['ns', 1e-9]];

function isNumber(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

function unitOf(seconds) {
  const rounded = Number(seconds.toPrecision(4));
  return (UNITS.find(([, size]) => rounded >= size) || UNITS[3])[0];
}

// to four digits, as the command line prints it
function numberIn(unit, seconds) {
  const value = Number((seconds / UNITS.find(([name]) => name === unit)[1]).toPrecision(4));
  const before = value > 0 ? Math.floor(Math.log10(value)) + 1 : 1;
  return value.toFixed(Math.min(3, Math.max(0, 4 - before)));
}

function duration(seconds) {
  if (!isNumber(seconds)) return seconds === null || seconds === undefined ? '–' : String(seconds);
  const unit = unitOf(seconds);
  return `${numberIn(unit, seconds)} ${unit}`;
}

function scaled(unit, seconds) {
  return isNumber(seconds) ? seconds / UNITS.find(([name]) => name === unit)[1] : null;
}

// a knob's value as Python writes it; strings without quotes
function label(value) {
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (Array.isArray(value)) return `(${value.map(within).join(', ')}${value.length === 1 ? ',' : ''})`;
  return String(value);
}

function within(value) {
  return typeof value === 'string' ? `'${value}'` : label(value);
}

// Plotly reads <b> and its kin in every text: what was measured is shown as it is
function plain(text) {
  return String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}

function short(text, most) {
  const signs = [...String(text)];
  return signs.length > most ? `${signs.slice(0, most - 1).join('')}…` : String(text);
}

function count(n, noun) {
  return `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
}

function median(values) {
  const ordered = [...values].sort((a, b) => a - b);
  const at = (ordered.length - 1) / 2;
  return (ordered[Math.floor(at)] + ordered[Math.ceil(at)]) / 2;
}

// --- rows ---

// once for each problem. Knobs may have any name, "constructor" too: what is looked up by name is a Map
function prepare(search) {
  const rows = search.rows.outcome.map((_, row) => row);
  search.missing = new Map(Object.entries(search.rows.absent).map(([knob, missing]) => [knob, new Set(missing)]));
  search.texts = new Map(Object.entries(search.rows.texts));
  search.fields = new Map(Object.entries(search.fields));
  search.varying = search.knobs.filter((knob) => new Set(rows.map((row) => knobText(search, knob, row))).size > 1);
}

function absent(search, knob, row) {
  return search.missing.has(knob) && search.missing.get(knob).has(row);
}

function knobText(search, knob, row) {
  if (absent(search, knob, row)) return '–';
  const told = search.texts.get(knob);
  return told ? told[row] : label(search.rows.config[knob][row]);
}

// the hover text of a Config: a knob a line
function hover(search, row, ...more) {
  const knobs = search.varying.slice(0, 24).map((knob) => `${short(knob, 30)}=${short(knobText(search, knob, row), 40)}`);
  return [...more, ...knobs].map(plain).join('<br>');
}

// the values of a knob among some rows, in order: numbers by size, others as they came
function valuesOf(search, knob, rows) {
  const seen = new Map();
  for (const row of rows) {
    const text = knobText(search, knob, row);
    if (!seen.has(text)) seen.set(text, search.rows.config[knob][row]);
  }
  const entries = [...seen];
  if (entries.every(([, value]) => isNumber(value))) entries.sort((a, b) => a[1] - b[1]);
  return entries.map(([text]) => text);
}

function measured(search) {
  return state.visible.filter((row) => isNumber(search.rows.median_s[row]));
}

function thinned(rows, most) {
  const step = Math.max(1, Math.ceil(rows.length / most));
  return rows.filter((_, number) => number % step === 0);
}

function thinning(rows, drawn) {
  return drawn.length < rows.length ? ` ${count(drawn.length, 'point')} of ${rows.length.toLocaleString('en')} are drawn.` : '';
}

// a place between -1 and 1 that is the same each time
function jitter(row) {
  return ((row * 0.618033988749895) % 1) * 2 - 1;
}

// --- colours ---

const DARK = window.matchMedia('(prefers-color-scheme: dark)');
const PAPER = 680; // width of a printed page in CSS pixels, less its margins: of A4 and Letter the narrower
let printing = false;

function theme() {
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(name).trim();
  const dark = DARK.matches && !printing;
  return {
    dark, fg: of('--fg'), dim: of('--dim'), line: of('--line'), bg: of('--bg'), soft: of('--soft'), good: of('--good'),
    // the fast stand out from the ground, the slow fade into it
    scale: dark
      ? [[0, '#fde725'], [0.25, '#5ec962'], [0.5, '#21918c'], [0.75, '#3b6a9c'], [1, '#4a3f7a']]
      : [[0, '#440154'], [0.25, '#3b528b'], [0.5, '#21918c'], [0.75, '#6fc968'], [1, '#c9d94a']],
    point: dark ? '#79b8ff' : '#2563b0', winner: dark ? '#ffb454' : '#d1480f',
    series: dark
      ? ['#79b8ff', '#ff8fd6', '#7ee2a0', '#ff9aa5', '#d2a8ff', '#e3e8ee', '#56d4dd', '#f2e060', '#9aa6b2', '#a5b4ff']
      : ['#2563b0', '#b5308c', '#1a7f37', '#a40e26', '#7b3fb5', '#1b1f24', '#0f7b83', '#8a7400', '#57606a', '#4453c9'],
  };
}

// the colour at a part from 0 to 1 of a scale
function colourAt(scale, part) {
  const at = Math.min(1, Math.max(0, part));
  const high = scale.find(([stop]) => stop >= at) || scale[scale.length - 1];
  const low = scale[Math.max(0, scale.indexOf(high) - 1)];
  const between = high[0] === low[0] ? 0 : (at - low[0]) / (high[0] - low[0]);
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => Math.round(channel(low[1], i) + between * (channel(high[1], i) - channel(low[1], i))));
  return `rgb(${mixed.join(',')})`;
}

// --- figures ---

const figures = [];
const seen = window.IntersectionObserver
  ? new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = figures.find((one) => one.node === entry.target);
      if (figure) {
        figure.near = entry.isIntersecting;
        if (figure.near) drawSoon();
      }
    }
  }, {rootMargin: '300px'})
  : null;

// `make(theme)` gives {traces, layout, text}, or {none: why there is nothing to see}
function figure(node, make) {
  const one = {node, make, near: seen === null, dirty: true};
  figures.push(one);
  if (seen) seen.observe(node);
  return one;
}

function forget(node) {
  const at = figures.findIndex((one) => one.node === node);
  if (at >= 0) {
    if (seen) seen.unobserve(node);
    if (window.Plotly) Plotly.purge(node);
    figures.splice(at, 1);
  }
}

function axis(colours, more) {
  return {
    gridcolor: colours.line, linecolor: colours.line, zeroline: false, automargin: true, tickcolor: colours.line,
    ...more, title: {text: plain((more && more.title) || ''), font: {size: 12}, standoff: 8},
  };
}

// a logarithmic axis whose ticks are whole numbers: 1, 2 and 5 of each power of ten, or of many powers the tens alone
function logarithmic(colours, low, high, title, more) {
  const steps = high / low > 2000 ? [1] : high / low > 60 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power += 1) ticks.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(2))));
  return axis(colours, {title, type: 'log', tickmode: 'array', tickvals: ticks, ticktext: ticks.map(String), ...more});
}

function categories(colours, values, title) {
  const step = Math.max(1, Math.ceil(values.length / 24));
  const at = values.map((_, i) => i).filter((i) => i % step === 0);
  return axis(colours, {
    title, type: 'linear', tickmode: 'array', tickvals: at, ticktext: at.map((i) => plain(short(values[i], 14))),
    range: [-0.6, values.length - 0.4],
  });
}

function draw(one) {
  if (!one.dirty || !window.Plotly) return;
  one.dirty = false;
  const colours = theme();
  const made = one.make(colours);
  const caption = one.node.parentNode.querySelector('figcaption');
  if (caption) caption.textContent = made.none || made.text || '';
  one.node.hidden = made.none !== undefined;
  if (one.node.hidden) {
    Plotly.purge(one.node);
    return;
  }
  const layout = {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: {color: colours.fg, size: 12}, autosize: true,
    margin: {l: 50, r: 15, t: 10, b: 40}, showlegend: false, hovermode: 'closest', hoverlabel: {align: 'left'},
    dragmode: window.matchMedia('(hover: hover)').matches ? 'zoom' : false, ...made.layout,
  };
  if (printing) layout.width = Math.min(one.node.clientWidth, one.node.closest('.grid') ? 0.48 * PAPER : PAPER);
  Plotly.react(one.node, made.traces, layout, {responsive: true, displaylogo: false, displayModeBar: false});
}

// everything is drawn anew: one figure after the other, what is seen first, what is far away when it comes near
function redraw() {
  for (const one of figures) one.dirty = true;
  drawSoon();
}

let soon = 0;

function drawSoon() {
  if (soon || !window.Plotly) return;
  soon = setTimeout(() => {
    soon = 0;
    const due = figures.filter((one) => one.dirty && one.near);
    const first = due.find(isSeen) || due[0];
    if (first) draw(first);
    if (!due.some((one) => one.dirty && isSeen(one))) document.documentElement.dataset.ready = 'yes'; // what is seen is drawn
    if (due.length > 1) drawSoon();
  });
}

function isSeen(one) {
  const {top, bottom} = one.node.getBoundingClientRect();
  return bottom >= 0 && top <= window.innerHeight;
}
