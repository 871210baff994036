// What the performance model predicted, what was measured, and the ceilings of the chip.

const BOUNDS = ['compute', 'memory', 'latency'];

function modelRows(search) {
  if (!search.model.ceilings) return [];
  return search.rows.median_s.map((_, row) => row).filter((row) => isNumber(search.rows.median_s[row]) && isNumber(search.rows.predicted_s[row]));
}

function predictedPlot(colours) {
  const search = current();
  const rows = modelRows(search);
  if (!rows.length) return {none: search.model.why ? `No predictions: ${search.model.why}.` : 'Nothing was measured.'};
  const drawn = thinned(rows, MOST_POINTS);
  const unit = unitOf(Math.min(...rows.map((row) => search.rows.median_s[row])));
  const both = rows.flatMap((row) => [scaled(unit, search.rows.median_s[row]), scaled(unit, search.rows.predicted_s[row])]);
  const ends = [Math.min(...both) * 0.9, Math.max(...both) * 1.1];
  const off = rows.map((row) => search.rows.predicted_s[row] / search.rows.median_s[row]);
  const traces = BOUNDS.map((bound, i) => {
    const mine = drawn.filter((row) => search.rows.bound[row] === bound);
    return {
      type: 'scatter', mode: 'markers', name: bound, x: mine.map((row) => scaled(unit, search.rows.predicted_s[row])), y: mine.map((row) => scaled(unit, search.rows.median_s[row])),
      marker: {size: 6, opacity: 0.7, color: colours.series[i], symbol: ['circle', 'square', 'diamond'][i]},
      hoverinfo: 'text', hovertext: mine.map((row) => hover(search, row, `measured ${duration(search.rows.median_s[row])}, predicted ${duration(search.rows.predicted_s[row])}, bound by ${bound}`)),
    };
  }).filter((trace) => trace.x.length);
  traces.push({type: 'scatter', mode: 'lines', name: 'as predicted', x: ends, y: ends, line: {color: colours.dim, dash: 'dash', width: 1}, hoverinfo: 'skip'});
  if (rows.includes(search.winner)) traces.push(winnerMark(colours, [scaled(unit, search.rows.predicted_s[search.winner])], [scaled(unit, search.rows.median_s[search.winner])], ['the winner']));
  return {
    text: `By the model what a Config is bound by; prediction over measurement is ${median(off).toFixed(2)} in the median of ${rows.length.toLocaleString('en')}.${thinning(rows, drawn)}`,
    traces,
    layout: {
      showlegend: true, legend: {orientation: 'h', y: -0.2}, xaxis: logarithmic(colours, ...ends, `predicted, ${unit}`, {range: ends.map(Math.log10)}),
      yaxis: logarithmic(colours, ...ends, `measured, ${unit}`, {range: ends.map(Math.log10)}),
    },
  };
}

function winnerMark(colours, x, y, text) {
  return {type: 'scatter', mode: 'markers', name: 'winner', x, y, marker: {size: 14, symbol: 'star', color: colours.winner, line: {width: 1, color: colours.bg}}, hoverinfo: 'text', hovertext: text};
}

function roofline(colours) {
  const search = current();
  const rows = modelRows(search).filter((row) => search.rows.flops[row] > 0 && search.rows.tiled_bytes[row] > 0);
  if (!rows.length) return {none: search.model.ceilings ? 'The model knows of no arithmetic: there is no roofline.' : ''};
  const {peak, bandwidth, l2_bandwidth: l2, dtype} = search.model.ceilings;
  const drawn = thinned(rows, MOST_POINTS);
  const rate = (row) => search.rows.flops[row] / search.rows.median_s[row] / 1e12;
  const tiled = (row) => search.rows.flops[row] / search.rows.tiled_bytes[row];
  const memory = (row) => search.rows.flops[row] / Math.max(1, search.rows.memory_bytes[row]);
  const xs = rows.flatMap((row) => [tiled(row), memory(row)]);
  const ends = [Math.min(...xs, (peak / l2) * 0.5) * 0.7, Math.max(...xs, (peak / bandwidth) * 2) * 1.4];
  const roof = (per_s) => (x) => Math.min(peak, per_s * x) / 1e12;
  const steps = Array.from({length: 60}, (_, i) => ends[0] * (ends[1] / ends[0]) ** (i / 59));
  const ceiling = (name, per_s, dash) => ({type: 'scatter', mode: 'lines', name, x: steps, y: steps.map(roof(per_s)), line: {color: dash ? colours.dim : colours.fg, width: 2, dash: dash || 'solid'}, hoverinfo: 'skip'});
  const traces = [
    ceiling(`memory, ${(bandwidth / 1e12).toPrecision(3)} TB/s`, bandwidth), ceiling(`L2, ${(l2 / 1e12).toPrecision(3)} TB/s`, l2, 'dash'),
    {
      type: 'scatter', mode: 'markers', name: 'Configs, by what their blocks move', x: drawn.map(tiled), y: drawn.map(rate), marker: {size: 6, opacity: 0.6, color: colours.point},
      hoverinfo: 'text', hovertext: drawn.map((row) => hover(search, row, `${rate(row).toFixed(1)} TFLOP/s, ${tiled(row).toFixed(1)} FLOP a byte moved`)),
    },
  ];
  const winner = rows.includes(search.winner) ? search.winner : null;
  if (winner !== null) {
    traces.push(winnerMark(colours, [tiled(winner), memory(winner)], [rate(winner), rate(winner)], ['the winner, by what its blocks move: below the L2', 'the winner, by what memory has to move: below memory']));
  }
  const part = winner === null ? '' : ` The winner reaches ${rate(winner).toFixed(1)} TFLOP/s, ${((100 * rate(winner)) / (peak / 1e12)).toFixed(0)} % of the peak for ${dtype}, ${(peak / 1e12).toPrecision(4)} TFLOP/s.`;
  const y = [Math.min(...rows.map(rate)) * 0.6, (peak / 1e12) * 1.6];
  return {
    text: `The ceilings of ${search.model.device} by its data sheet. Arithmetic is that of full tiles.${part} A winner far below both roofs waits.${thinning(rows, drawn)}`,
    traces,
    layout: {
      showlegend: true, legend: {orientation: 'h', y: -0.2}, xaxis: logarithmic(colours, ...ends, 'FLOP a byte', {range: ends.map(Math.log10)}), yaxis: logarithmic(colours, ...y, 'TFLOP/s', {range: y.map(Math.log10)}),
    },
  };
}

function modelFacts() {
  const node = $('model-facts');
  node.textContent = '';
  for (const [name, text] of current().model.winner || []) node.append(el('dt', {}, name), el('dd', {}, text));
}
