// Who left the race when, the fastest round by round, and how sure their order is.

const ENDED = 'was in the race to its end';
const ALONE = 0.6; // where those stand that were in no round, left of the first

function left(colours) {
  const search = current();
  const race = search.race;
  if (!race) return {none: search.winner === null ? 'Nothing was measured.' : 'These samples were not taken in rounds: there was no race.'};
  const rows = search.rows.rank.map((_, row) => row).filter((row) => search.rows.in_race[row]);
  const drawn = thinned(rows, MOST_POINTS);
  const last = race.first + race.in_round.length - 1;
  const round = (row) => Math.max(ALONE, search.rows.last_round[row] - race.first + 1);
  const ended = (row) => search.rows.last_round[row] >= last - 1;
  const rounds = race.in_round.map((_, i) => i + 1);
  const others = race.other_races ? ` ${count(race.other_races, 'Config')} timed in other searches are left out.` : '';
  const alone = race.alone ? ` At “once”: timed once, when compiled, and far behind.` : '';
  if (race.in_round.every((n) => n === race.in_round[0])) return {none: `${race.in_round[0] === 1 ? 'One Config was' : `All ${race.in_round[0]} Configs were`} in all ${count(race.in_round.length, 'round')}: nobody left.${others}`};
  const relative = rows.map((row) => search.rows.relative[row]);
  return {
    text: `${race.in_round[0]} began, ${race.in_round[race.in_round.length - 1]} were in the last of ${race.in_round.length} rounds. The line: how many were timed; a point: a Config at its last round.${alone}${others}${thinning(rows, drawn)}`,
    traces: [
      {
        type: 'scatter', mode: 'lines', x: rounds, y: race.in_round, yaxis: 'y2', line: {shape: 'hv', color: colours.dim, width: 2}, fill: 'tozeroy', fillcolor: colours.soft,
        hoverinfo: 'text', hovertext: race.in_round.map((n, i) => `round ${i + 1}: ${count(n, 'Config')} timed`),
      },
      {
        type: 'scatter', mode: 'markers', x: drawn.map(round), y: drawn.map((row) => search.rows.relative[row]),
        marker: {size: drawn.map((row) => (ended(row) ? 8 : 5)), color: drawn.map((row) => (row === search.winner ? colours.winner : ended(row) ? colours.good : colours.point)), opacity: 0.75},
        hoverinfo: 'text', hovertext: drawn.map((row) => hover(search, row, `${search.rows.relative[row].toFixed(3)}× the best, ${ended(row) ? ENDED : round(row) === ALONE ? 'timed once' : `left after round ${round(row)}`}`)),
      },
    ],
    layout: {
      xaxis: rounded(colours, race),
      yaxis: logarithmic(colours, Math.min(...relative), Math.max(...relative), 'median over the best', {overlaying: 'y2'}),
      yaxis2: {...axis(colours, {title: 'Configs timed', side: 'right', rangemode: 'tozero', showgrid: false}), anchor: 'x'},
    },
  };
}

// the first rounds decide most: of many, they get more room
function rounded(colours, race) {
  const many = race.in_round.length > 12;
  const ticks = (many ? [1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320] : race.in_round.map((_, i) => i + 1)).filter((n) => n <= race.in_round.length);
  const range = [race.alone ? ALONE * 0.9 : 0.9, race.in_round.length * (many ? 1.1 : 1) + (many ? 0 : 0.3)];
  return axis(colours, {
    title: 'round', type: many ? 'log' : 'linear', tickmode: 'array', tickvals: race.alone ? [ALONE, ...ticks] : ticks,
    ticktext: race.alone ? ['once', ...ticks.map(String)] : ticks.map(String), range: many ? range.map(Math.log10) : range,
  });
}

function raceTable() {
  const search = current();
  const node = $('race-table');
  node.textContent = '';
  if (!search.race) return;
  const {first, in_round: counts} = search.race;
  node.append(el('thead', {}, el('tr', {}, ...['round', 'Configs timed', 'left after it', 'the fastest of those that left'].map((text) => el('th', {scope: 'col', class: 'n'}, text)))));
  const body = el('tbody', {});
  counts.forEach((n, i) => {
    const gone = i + 1 < counts.length ? n - counts[i + 1] : 0;
    if (gone <= 0 && i > 0 && i + 1 < counts.length) return;
    const went = gone > 0 ? search.rows.relative.filter((_, row) => search.rows.in_race[row] && search.rows.last_round[row] === first + i) : [];
    const cells = [i + 1, n, gone, went.length ? `${Math.min(...went).toFixed(3)}×` : '–'];
    body.append(el('tr', {}, ...cells.map((text) => el('td', {class: 'n'}, String(text)))));
  });
  node.append(body);
}

function lines(colours) {
  const search = current();
  if (!search.race || search.race.in_round.length < 2) return {none: ''};
  const base = search.race.lines.find((line) => line.row === search.winner) || search.race.lines[0];
  const of = new Map(base.rounds.map((round, i) => [round, base.seconds[i]]));
  const traces = search.race.lines.map((line, i) => {
    const kept = line.rounds.map((round, at) => [round, line.seconds[at]]).filter(([round]) => of.has(round));
    const name = `#${search.rows.rank[line.row]}`;
    return {
      type: 'scatter', mode: 'lines', name, x: kept.map(([round]) => round - search.race.first + 1), y: kept.map(([round, s]) => s / of.get(round)),
      line: {width: line === base ? 3 : 1.3, color: line === base ? colours.winner : colours.series[i % colours.series.length]},
      hoverinfo: 'text', hovertext: kept.map(([round, s]) => hover(search, line.row, `${name}, round ${round - search.race.first + 1}: ${duration(s)}, ${(s / of.get(round)).toFixed(3)}×`)),
    };
  });
  const all = traces.flatMap((trace) => trace.y).sort((a, b) => a - b);
  const [low, high] = [0.02, 0.98].map((part) => all[Math.round(part * (all.length - 1))]);
  const range = [Math.min(1, low) - 0.1 * (high - low) - 0.002, Math.max(1, high) + 0.1 * (high - low) + 0.002];
  const out = all.filter((value) => value < range[0] || value > range[1]).length;
  return {
    text: `The first ${count(traces.length, 'Config')} of the ranking, each sample over that of ${base.row === search.winner ? 'the winner' : 'number 1'} in the same round: what all share, as a drift of the clock, is gone.${out ? ` ${count(out, 'sample')} beyond the picture.` : ''}`,
    traces,
    layout: {
      showlegend: true, legend: {orientation: 'h', y: -0.2, font: {size: 11}}, xaxis: axis(colours, {title: 'round'}),
      yaxis: axis(colours, {title: 'over the winner in the same round', range}),
    },
  };
}

// --- how sure ---

function beside(colours) {
  const search = current();
  if (search.beside.length < 2) return {none: 'There is nothing to compare with.'};
  const ones = [...search.beside].reverse();
  const sure = (one) => isNumber(one.high) && one.rounds > 1;
  const mark = (one) => search.rows.mark[one.row];
  const margin = 1.01;
  const colour = (one) => (mark(one) === 'winner' ? colours.winner : mark(one) === 'tie' ? colours.good : colours.point);
  const widest = Math.max(1.02, ...ones.map((one) => one.ratio));
  const ends = [Math.min(...ones.map((one) => one.ratio), Math.max(Math.min(...ones.map((one) => (sure(one) ? one.low : one.ratio))), 1 - (widest - 1))), Math.min(Math.max(...ones.map((one) => (sure(one) ? one.high : one.ratio))), 1 + 1.6 * (widest - 1))];
  const pad = 0.04 * (ends[1] - ends[0]) + 0.001;
  const cut = ones.some((one) => sure(one) && (one.high > ends[1] || one.low < ends[0]));
  const unsure = ones.filter((one) => !sure(one)).length;
  return {
    text: `How many times number 1's time the first ${ones.length} take, in the rounds both were in, with bounds that hold for all at once; below the line at 1 % they tie.${unsure ? ` Hollow: ${unsure} that were not timed side by side with it, so nothing bounds them.` : ''}${cut ? ' Some bounds go on beyond the picture.' : ''}`,
    traces: [{
      type: 'scatter', mode: 'markers', x: ones.map((one) => one.ratio), y: ones.map((_, i) => i),
      error_x: {type: 'data', symmetric: false, array: ones.map((one) => (sure(one) ? one.high - one.ratio : 0)), arrayminus: ones.map((one) => (sure(one) ? one.ratio - one.low : 0)), thickness: 2, width: 4, color: colours.dim},
      marker: {size: 9, color: ones.map((one) => (sure(one) ? colour(one) : colours.bg)), line: {width: 2, color: ones.map(colour)}},
      hoverinfo: 'text', hovertext: ones.map((one) => hover(search, one.row, `#${search.rows.rank[one.row]} ${mark(one)}: ${one.ratio.toFixed(4)}×`, sure(one) ? `${one.low.toFixed(4)} to ${one.high.toFixed(4)}, ${one.rounds} rounds` : 'not side by side')),
    }],
    layout: {
      xaxis: axis(colours, {title: "times number 1's", range: [ends[0] - pad, ends[1] + pad]}),
      yaxis: axis(colours, {tickmode: 'array', tickvals: ones.map((_, i) => i), ticktext: ones.map((one) => `#${search.rows.rank[one.row]}${mark(one) ? ` ${mark(one)}` : ''}`), range: [-0.7, ones.length - 0.3], showgrid: false}),
      shapes: [1, margin].map((x, i) => ({type: 'line', x0: x, x1: x, yref: 'paper', y0: 0, y1: 1, line: {color: colours.dim, width: 1, dash: i ? 'dash' : 'solid'}})),
    },
  };
}
