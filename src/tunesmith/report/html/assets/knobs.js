// Time against each knob, against two of them, and against all at once.

function timeAxis(colours, search, rows) {
  const times = rows.map((row) => search.rows.median_s[row]);
  const unit = unitOf(Math.min(...times));
  const [low, high] = [scaled(unit, Math.min(...times)), scaled(unit, Math.max(...times))];
  return {unit, axis: high / low < 3 ? axis(colours, {title: `median, ${unit}`, nticks: 6}) : logarithmic(colours, low, high, `median, ${unit}`)};
}

// a number for each row: 0 the fastest, 1 ten times slower or the slowest
function slowness(search, rows) {
  const times = rows.map((row) => search.rows.median_s[row]);
  const least = Math.min(...times);
  const span = Math.log(Math.min(10, Math.max(...times) / least)) || 1;
  return (row) => Math.min(1, Math.log(search.rows.median_s[row] / least) / span);
}

const MOST_VALUES = 200; // of a knob, up to which the fastest of each value is a line

function against(knob) {
  return (colours) => {
    const search = current();
    const rows = measured(search);
    if (!rows.length) return {none: `${knob}: nothing measured is left by the filter.`};
    const values = valuesOf(search, knob, rows);
    const {unit, axis: y} = timeAxis(colours, search, rows);
    const drawn = thinned(rows, MOST_POINTS);
    const place = new Map(values.map((value, i) => [value, i]));
    const best = values.map(() => null);
    for (const row of rows) {
      const at = place.get(knobText(search, knob, row));
      if (best[at] === null || search.rows.median_s[row] < search.rows.median_s[best[at]]) best[at] = row;
    }
    return {
      text: thinning(rows, drawn).trim(),
      traces: [
        {
          type: 'scatter', mode: 'markers', x: drawn.map((row) => place.get(knobText(search, knob, row)) + 0.28 * jitter(row)),
          y: drawn.map((row) => scaled(unit, search.rows.median_s[row])), marker: {color: colours.point, size: 5, opacity: 0.45},
          hoverinfo: 'text', hovertext: drawn.map((row) => hover(search, row, duration(search.rows.median_s[row]))),
        },
        ...(values.length > MOST_VALUES ? [] : [{
          type: 'scatter', mode: values.length > 40 ? 'lines' : 'lines+markers', x: best.map((_, i) => i), y: best.map((row) => scaled(unit, search.rows.median_s[row])),
          line: {color: colours.winner, width: 2}, marker: {size: 8, color: colours.winner},
          hoverinfo: 'text', hovertext: best.map((row, i) => hover(search, row, `fastest of ${knob}=${values[i]}: ${duration(search.rows.median_s[row])}`)),
        }]),
      ],
      layout: {xaxis: categories(colours, values, short(knob, 40)), yaxis: y},
    };
  };
}

// how much a knob matters: the logarithm of the worst over the best, of the fastest of each value
function weight(search, knob) {
  const best = new Map();
  search.rows.median_s.forEach((time, row) => {
    const value = knobText(search, knob, row);
    if (isNumber(time)) best.set(value, Math.min(time, best.has(value) ? best.get(value) : Infinity));
  });
  const times = [...best.values()];
  return times.length > 1 ? Math.log(Math.max(...times) / Math.min(...times)) : 0;
}

function startKnobs() {
  const search = current();
  const grid = $('knob-grid');
  for (const node of [...grid.querySelectorAll('.plot')]) forget(node);
  grid.textContent = '';
  const none = !search.varying.length;
  $('knobs-none').hidden = !none;
  $('knobs-none').textContent = none ? 'All Configs have the same knobs: there is nothing to compare.' : '';
  for (const knob of search.varying) {
    const node = el('div', {class: 'plot', role: 'img', 'aria-label': `Time against ${knob}`});
    grid.append(el('figure', {}, node, el('figcaption', {})));
    figure(node, against(knob));
  }
  const byWeight = [...search.varying].sort((a, b) => weight(search, b) - weight(search, a));
  fillSelect($('heat-x'), search.varying, byWeight[0]);
  fillSelect($('heat-y'), search.varying, byWeight[1] || byWeight[0]);
}

function fillSelect(select, values, chosen) {
  select.textContent = '';
  for (const value of values) {
    const option = el('option', {value}, short(value, 60));
    option.selected = value === chosen;
    select.append(option);
  }
}

// --- two knobs ---

function heat(colours) {
  const search = current();
  const [across, down, of] = [$('heat-x').value, $('heat-y').value, $('heat-of').value];
  const rows = measured(search);
  if (search.varying.length < 2) return {none: 'Two knobs that differ are needed.'};
  if (!rows.length) return {none: 'Nothing measured is left by the filter.'};
  const xs = valuesOf(search, across, state.visible);
  const ys = valuesOf(search, down, state.visible);
  const cells = new Map();
  for (const row of state.visible) {
    const at = `${xs.indexOf(knobText(search, across, row))} ${ys.indexOf(knobText(search, down, row))}`;
    if (!cells.has(at)) cells.set(at, {times: [], failed: 0});
    const time = search.rows.median_s[row];
    if (isNumber(time)) cells.get(at).times.push(time);
    else cells.get(at).failed += 1;
  }
  const value = (cell) => (!cell || !cell.times.length ? null : of === 'least' ? Math.min(...cell.times) : median(cell.times));
  const at = (x, y) => cells.get(`${x} ${y}`);
  const z = ys.map((_, y) => xs.map((__, x) => value(at(x, y))));
  const finite = z.flat().filter(isNumber);
  const unit = unitOf(Math.min(...finite));
  const few = xs.length <= (window.innerWidth < 500 ? 5 : 14) && ys.length <= 14;
  const least = Math.min(...finite);
  const cap = Math.max(1.02, Math.min(10, Math.max(...finite) / least));
  const parts = z.map((line) => line.map((time) => (time === null ? null : Math.log(time / least) / Math.log(cap))));
  const text = ys.map((yv, y) => xs.map((xv, x) => {
    const cell = at(x, y);
    const head = `${across}=${xv}, ${down}=${yv}`;
    if (!cell) return plain(`${head}: no Config`);
    const said = cell.times.length ? `${duration(value(cell))}, of ${count(cell.times.length, 'Config')}` : 'nothing ran';
    return plain(`${head}: ${said}${cell.failed ? `; ${cell.failed} did not run` : ''}`);
  }));
  const notes = [];
  if (few) {
    z.forEach((line, y) => line.forEach((time, x) => {
      const said = time !== null ? numberIn(unit, time) : at(x, y) ? '×' : '';
      const dark = time !== null && (colours.dark ? parts[y][x] > 0.45 : parts[y][x] < 0.6);
      const colour = time === null ? colours.dim : dark ? '#fff' : '#111';
      if (said) notes.push({x, y, text: said, showarrow: false, font: {color: colour, size: 12}});
    }));
  }
  return {
    text: `Each cell: ${of === 'least' ? 'the fastest' : 'the median'} of its Configs, in ${unit}; × where none of them ran.`,
    traces: [{
      type: 'heatmap', z: parts, x: xs.map((_, i) => i), y: ys.map((_, i) => i), zmin: 0, zmax: 1, colorscale: colours.scale, xgap: 2, ygap: 2,
      hoverinfo: 'text', text, showscale: window.innerWidth >= 500,
      colorbar: {
        tickvals: [0, 0.5, 1], ticktext: [1, Math.sqrt(cap), cap].map((times, i) => `${i === 2 && cap === 10 ? '≥ ' : ''}${times.toFixed(times < 10 ? 2 : 0)}×`),
        outlinewidth: 0, thickness: 12, title: {text: 'of the best', side: 'right'},
      },
    }],
    layout: {xaxis: {...categories(colours, xs, short(across, 40)), showgrid: false}, yaxis: {...categories(colours, ys, short(down, 40)), showgrid: false}, annotations: notes},
  };
}

// --- all knobs ---

const BANDS = 12;

function parallel(colours) {
  const search = current();
  const all = measured(search).sort((a, b) => search.rows.median_s[b] - search.rows.median_s[a]);
  if (!all.length) return {none: 'Nothing measured is left by the filter.'};
  if (!search.varying.length) return {none: 'All Configs have the same knobs.'};
  const wanted = Math.max(1, Math.round(all.length * Number($('parallel-most').value)));
  const rows = all.slice(all.length - wanted);
  const drawn = thinned(rows, MOST_POINTS);
  if (drawn[drawn.length - 1] !== rows[rows.length - 1]) drawn.push(rows[rows.length - 1]);
  const slow = slowness(search, rows);
  const knobs = search.varying;
  const values = new Map(knobs.map((knob) => [knob, valuesOf(search, knob, rows)]));
  const height = (i, n) => (n > 1 ? i / (n - 1) : 0.5);
  const points = (row) => [
    ...knobs.map((knob) => {
      const of = values.get(knob);
      return height(of.indexOf(knobText(search, knob, row)), of.length) + 0.018 * jitter(row);
    }), slow(row),
  ];
  const bands = Array.from({length: BANDS}, () => ({x: [], y: []}));
  for (const row of drawn) {
    const band = bands[Math.min(BANDS - 1, Math.floor(slow(row) * BANDS))];
    points(row).forEach((y, x) => {
      band.x.push(x);
      band.y.push(y);
    });
    band.x.push(null);
    band.y.push(null);
  }
  const opacity = Math.max(0.25, Math.min(0.9, 60 / drawn.length + 0.2));
  const traces = bands.map((band, i) => ({
    type: 'scatter', mode: 'lines', ...band, hoverinfo: 'skip', opacity, line: {width: 1, color: colourAt(colours.scale, (i + 0.5) / BANDS)},
  })).reverse();
  const winner = rows.includes(search.winner) ? search.winner : rows[rows.length - 1];
  traces.push({
    type: 'scatter', mode: 'lines+markers', x: [...knobs, ''].map((_, i) => i), y: points(winner), line: {width: 3, color: colours.winner}, marker: {size: 7, color: colours.winner},
    hoverinfo: 'text', hovertext: [...knobs.map((knob) => plain(`${knob}=${knobText(search, knob, winner)}`)), duration(search.rows.median_s[winner])],
  });
  const node = $('parallel-plot');
  node.style.minWidth = `${printing ? 0 : (knobs.length + 1) * 76}px`;
  return {
    text: `${winner === search.winner ? 'The winner' : 'The fastest of these'} is the thick line; the last axis is the time, the fastest at its foot.${thinning(rows, drawn)}`,
    traces, layout: parallelLayout(colours, search, knobs, values, rows, height),
  };
}

function parallelLayout(colours, search, knobs, values, rows, height) {
  const notes = [];
  knobs.forEach((knob, x) => {
    const of = values.get(knob);
    const step = Math.max(1, Math.ceil(of.length / 12));
    of.forEach((value, i) => {
      if (i % step === 0) notes.push({x, y: height(i, of.length), text: plain(short(value, 12)), showarrow: false, xanchor: 'left', xshift: 4, font: {size: 11}, bgcolor: colours.bg, opacity: 0.9, borderpad: 1});
    });
  });
  const times = rows.map((row) => search.rows.median_s[row]);
  [Math.min(...times), Math.min(10 * Math.min(...times), Math.max(...times))].forEach((time, y) => {
    notes.push({x: knobs.length, y, text: plain(`${y && Math.max(...times) > 10 * Math.min(...times) ? '≥ ' : ''}${duration(time)}`), showarrow: false, xanchor: 'right', xshift: -4, font: {size: 11}, bgcolor: colours.bg, opacity: 0.9, borderpad: 1});
  });
  const names = [...knobs, 'time'];
  return {
    annotations: notes, hovermode: 'closest',
    shapes: names.map((_, x) => ({type: 'line', x0: x, x1: x, y0: -0.03, y1: 1.03, layer: 'below', line: {color: colours.dim, width: 1}})),
    xaxis: {tickvals: names.map((_, i) => i), ticktext: names.map((name) => plain(short(name, 16))), range: [-0.15, names.length - 0.85], showgrid: false, zeroline: false, automargin: true, side: 'top', fixedrange: true, tickangle: 0},
    yaxis: {visible: false, range: [-0.06, 1.06], fixedrange: true}, margin: {l: 25, r: 25, t: 40, b: 15}, dragmode: false,
  };
}
