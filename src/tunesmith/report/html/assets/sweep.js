// Many problems: the winner's time and knobs against a size.

const sweep = {sizes: [], groups: new Map()};

function sizesThatDiffer() {
  const values = new Map();
  for (const search of DATA.searches) {
    for (const [name, value] of search.fields) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(value);
    }
  }
  return [...values].filter(([, seenValues]) => seenValues.size > 1 && [...seenValues].every(isNumber)).sort((a, b) => b[1].size - a[1].size).map(([name]) => name);
}

function fieldText(search, name) {
  return search.fields.has(name) ? label(search.fields.get(name)) : '–';
}

function groupBy(size) {
  sweep.groups = new Map();
  const fields = new Set(DATA.searches.flatMap((search) => [...search.fields.keys()]));
  const differing = [...fields].filter((name) => name !== size && new Set(DATA.searches.map((search) => fieldText(search, name))).size > 1);
  const [kernels, devices] = ['kernel', 'device'].map((name) => new Set(DATA.searches.map((search) => (name === 'kernel' ? search.kernel : search.key.device))).size);
  DATA.searches.forEach((search, number) => {
    const rest = differing.filter((name) => search.fields.has(name)).map((name) => `${name}=${fieldText(search, name)}`);
    const name = [...(kernels > 1 ? [search.kernel] : []), ...(devices > 1 ? [search.key.device] : []), ...rest].join(', ') || search.kernel;
    if (!isNumber(search.fields.get(size))) return;
    if (!sweep.groups.has(name)) sweep.groups.set(name, []);
    sweep.groups.get(name).push(number);
  });
  for (const group of sweep.groups.values()) group.sort((a, b) => DATA.searches[a].fields.get(size) - DATA.searches[b].fields.get(size));
  const largest = [...sweep.groups].sort((a, b) => b[1].length - a[1].length)[0];
  fillSelect($('sweep-series'), [...sweep.groups.keys()], largest && largest[0]);
}

function winnerTime(search) {
  return search.winner === null ? null : search.rows.median_s[search.winner];
}

function sweepTime(colours) {
  const size = $('sweep-x').value;
  if (!size) return {none: 'The problems differ in no size: there is nothing to draw against.'};
  const group = (sweep.groups.get($('sweep-series').value) || []).map((number) => DATA.searches[number]).filter((search) => isNumber(winnerTime(search)));
  if (!group.length) return {none: 'Nothing was measured of these.'};
  const unit = unitOf(Math.min(...group.map(winnerTime)));
  const x = group.map((search) => search.fields.get(size));
  const traces = [{
    type: 'scatter', mode: 'lines+markers', name: 'winner', x, y: group.map((search) => scaled(unit, winnerTime(search))), line: {color: colours.winner, width: 2}, marker: {size: 8},
    hoverinfo: 'text', hovertext: group.map((search) => hover(search, search.winner, `${size}=${search.fields.get(size)}: ${duration(winnerTime(search))}`)),
  }];
  const names = [...new Set(group.flatMap((search) => search.rivals.map((rival) => rival.name)))];
  names.forEach((name, i) => {
    const of = (search) => search.rivals.find((rival) => rival.name === name);
    const told = group.filter((search) => of(search) && isNumber(of(search).median_s));
    if (told.length) {
      traces.push({
        type: 'scatter', mode: 'lines+markers', name: plain(short(name, 40)), x: told.map((search) => search.fields.get(size)), y: told.map((search) => scaled(unit, of(search).median_s)),
        line: {color: colours.series[i % colours.series.length], dash: 'dot'}, marker: {size: 7, symbol: 'x'},
        hoverinfo: 'text', hovertext: told.map((search) => plain(`${name}, ${size}=${search.fields.get(size)}: ${duration(of(search).median_s)}, ${(of(search).median_s / winnerTime(search)).toFixed(3)}× the winner`)),
      });
    }
  });
  const library = group.filter((search) => isNumber(search.library_s));
  if (library.length) {
    traces.push({type: 'scatter', mode: 'lines+markers', name: 'library', x: library.map((search) => search.fields.get(size)), y: library.map((search) => scaled(unit, search.library_s)), line: {color: colours.dim, dash: 'dash'}, marker: {symbol: 'square'}, hoverinfo: 'text', hovertext: library.map((search) => `library: ${duration(search.library_s)}`)});
  }
  const wide = Math.min(...x) > 0 && Math.max(...x) / Math.min(...x) > 8;
  const times = traces.flatMap((trace) => trace.y);
  const few = [...new Set(x)];
  return {
    text: `Time of the winner against ${size}${traces.length > 1 ? ', beside what others would use' : ''}: ${count(group.length, 'problem')}.`, traces,
    layout: {
      showlegend: traces.length > 1, legend: {orientation: 'h', y: -0.2},
      xaxis: wide ? logarithmic(colours, Math.min(...x), Math.max(...x), size, few.length <= 12 ? {tickvals: few, ticktext: few.map(String)} : {}) : axis(colours, {title: size}),
      yaxis: Math.max(...times) / Math.min(...times) > 3 ? logarithmic(colours, Math.min(...times), Math.max(...times), unit) : axis(colours, {title: unit, nticks: 6}),
    },
  };
}

function sweepKnobs(colours) {
  const size = $('sweep-x').value;
  const group = (sweep.groups.get($('sweep-series').value) || []).map((number) => DATA.searches[number]).filter((search) => search.winner !== null);
  if (!size || !group.length) return {none: ''};
  const all = [...new Set(group.flatMap((search) => search.knobs))];
  const text = (search, knob) => (search.knobs.includes(knob) ? knobText(search, knob, search.winner) : '–');
  const knobs = all.filter((knob) => group.length === 1 || new Set(group.map((search) => text(search, knob))).size > 1).reverse();
  if (!knobs.length) return {none: 'The winner has the same knobs for all of these.'};
  const values = new Map(knobs.map((knob) => {
    const found = [...new Set(group.map((search) => text(search, knob)))];
    return [knob, found.every((value) => !Number.isNaN(Number(value))) ? found.sort((a, b) => a - b) : found];
  }));
  const part = (search, knob) => values.get(knob).indexOf(text(search, knob)) / Math.max(1, values.get(knob).length - 1);
  const z = knobs.map((knob) => group.map((search) => part(search, knob)));
  const pale = colours.dark ? [[0, '#1a2028'], [1, '#2c5282']] : [[0, '#eef3f8'], [1, '#8fb8e8']];
  const few = group.length <= (window.innerWidth < 500 ? 6 : 20);
  const notes = few ? knobs.flatMap((knob, y) => group.map((search, x) => ({x, y, text: plain(short(text(search, knob), 8)), showarrow: false, font: {size: 11, color: colours.fg}}))) : [];
  return {
    text: `The knobs in which the winners differ, for each ${size}; the bluer, the later a value stands in their order.`,
    traces: [{
      type: 'heatmap', z, x: group.map((_, i) => i), y: knobs.map((_, i) => i), colorscale: pale, zmin: 0, zmax: 1, showscale: false, xgap: 2, ygap: 2,
      hoverinfo: 'text', text: knobs.map((knob) => group.map((search) => plain(`${size}=${search.fields.get(size)}: ${knob}=${text(search, knob)}`))),
    }],
    layout: {
      annotations: notes, xaxis: {...categories(colours, group.map((search) => label(search.fields.get(size))), size), showgrid: false},
      yaxis: {...categories(colours, knobs, ''), showgrid: false},
    },
  };
}

function startSweep() {
  sweep.sizes = sizesThatDiffer();
  fillSelect($('sweep-x'), sweep.sizes, sweep.sizes[0]);
  groupBy(sweep.sizes[0]);
  figure($('sweep-time'), sweepTime);
  figure($('sweep-knobs'), sweepKnobs);
  $('sweep-x').addEventListener('change', () => {
    groupBy($('sweep-x').value);
    redraw();
  });
  $('sweep-series').addEventListener('change', redraw);
  for (const button of document.querySelectorAll('button.goto')) {
    button.addEventListener('click', () => {
      show(Number(button.dataset.search));
      $('summary').scrollIntoView();
      const heading = $('search-select');
      heading.focus({preventScroll: true});
    });
  }
  $('search-select').addEventListener('change', () => show(Number($('search-select').value)));
}
