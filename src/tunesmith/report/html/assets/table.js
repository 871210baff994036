// The score table: every Config a row, sorted by any column, filtered by terms that all must hold.

const FIRST = 25; // rows at first
const PAGE = 100; // rows that are added at a time
const table = {columns: [], sort: 'rank', down: false, shown: FIRST, terms: []};

const RESOURCE_HEADINGS = {registers: 'registers', spills: 'spills', shared_bytes: 'shared bytes', threads: 'threads', code_bytes: 'code bytes'};

function columnsOf(search) {
  const rows = search.rows;
  const times = rows.median_s.filter(isNumber);
  const unit = times.length ? unitOf(Math.min(...times)) : 'µs';
  const time = (list) => ({get: (row) => list[row], text: (row) => (isNumber(list[row]) ? numberIn(unit, list[row]) : '–')});
  const number = (list, digits) => ({
    get: (row) => list[row],
    text: (row) => (isNumber(list[row]) ? (digits === undefined ? String(list[row]) : list[row].toFixed(digits)) : '–'),
  });
  const text = (list) => ({get: (row) => list[row], text: (row) => list[row] || '', left: true});
  const columns = [
    {id: 'rank', heading: '#', names: ['#', 'rank'], ...number(rows.rank)},
    {id: 'median', heading: unit, names: [unit, 'time', 'median'], unit, ...time(rows.median_s)},
    {id: 'p20', heading: 'p20', names: ['p20'], unit, ...time(rows.p20_s)},
    {id: 'p80', heading: 'p80', names: ['p80'], unit, ...time(rows.p80_s)},
    {id: 'n', heading: 'n', names: ['n', 'samples'], ...number(rows.samples)},
    {id: 'relative', heading: '×best', names: ['×best', 'xbest', 'relative'], ...number(rows.relative, 3)},
    {id: 'mark', heading: 'mark', names: ['mark'], ...text(rows.mark)},
  ];
  for (const knob of search.varying) {
    columns.push({id: `knob ${knob}`, heading: knob, names: [knob], get: (row) => rows.config[knob][row], text: (row) => knobText(search, knob, row)});
  }
  if (rows.outcome.some((one) => one !== 'measured')) columns.push({id: 'outcome', heading: 'outcome', names: ['outcome'], ...text(rows.outcome)});
  if (rows.predicted_s) {
    columns.push({id: 'predicted', heading: `predicted ${unit}`, names: ['predicted'], unit, ...time(rows.predicted_s)});
    columns.push({id: 'bound', heading: 'bound', names: ['bound'], ...text(rows.bound)});
  }
  for (const name of Object.keys(rows.resources)) {
    columns.push({id: `resource ${name}`, heading: RESOURCE_HEADINGS[name] || name, names: [name, RESOURCE_HEADINGS[name] || name], ...number(rows.resources[name])});
  }
  if (rows.compile_s.some(isNumber)) columns.push({id: 'compile', heading: 'compile s', names: ['compile'], ...number(rows.compile_s, 2)});
  return columns;
}

// --- the filter ---

function parseFilter(search, text) {
  const constant = search.knobs.filter((knob) => !search.varying.includes(knob)).map((knob) => ({
    names: [knob], get: (row) => search.rows.config[knob][row], text: (row) => knobText(search, knob, row),
  }));
  return text.split(/\s+/).filter(Boolean).map((term) => {
    const parts = /^(.+?)(<=|>=|!=|=|<|>)(.+)$/.exec(term);
    const column = parts && [...table.columns, ...constant].find((one) => one.names.some((name) => name.toLowerCase() === parts[1].toLowerCase()));
    if (!column) {
      const wanted = term.toLowerCase();
      return (row) => table.columns.some((one) => String(one.text(row)).toLowerCase().includes(wanted));
    }
    return (row) => compares(column, row, parts[2], parts[3]);
  });
}

function compares(column, row, how, wanted) {
  const value = column.get(row);
  const size = Number(wanted);
  if (how === '=' || how === '!=') {
    const same = column.text(row).toLowerCase() === wanted.toLowerCase() || (isNumber(value) && !column.unit && value === size);
    return same === (how === '=');
  }
  if (!isNumber(value) || Number.isNaN(size)) return false;
  const mine = column.unit ? scaled(column.unit, value) : value;
  return {'<': mine < size, '>': mine > size, '<=': mine <= size, '>=': mine >= size}[how];
}

// --- the order ---

function orderOf(a, b) {
  const empty = (value) => value === null || value === undefined || value === '';
  if (empty(a) || empty(b)) return empty(a) - empty(b);
  if (isNumber(a) && isNumber(b)) return table.down ? b - a : a - b;
  const ordered = label(a).localeCompare(label(b), 'en', {numeric: true});
  return table.down ? -ordered : ordered;
}

function sorted(rows) {
  const column = table.columns.find((one) => one.id === table.sort) || table.columns[0];
  return [...rows].sort((a, b) => orderOf(column.get(a), column.get(b)) || a - b);
}

// --- drawing it ---

function applyFilter() {
  const search = current();
  table.terms = parseFilter(search, $('filter').value);
  const all = search.rows.outcome.map((_, row) => row);
  state.visible = all.filter((row) => table.terms.every((holds) => holds(row)));
  table.shown = FIRST;
  fillTable();
}

function headCell(column) {
  const sort = table.sort === column.id ? (table.down ? 'descending' : 'ascending') : 'none';
  const sign = {none: '', ascending: ' ▲', descending: ' ▼'}[sort];
  const button = el('button', {type: 'button'}, column.heading, el('span', {'aria-hidden': 'true'}, sign));
  button.addEventListener('click', () => {
    table.down = table.sort === column.id && !table.down;
    table.sort = column.id;
    fillTable();
    const again = $('score-region').querySelector(`th[aria-sort]:not([aria-sort="none"]) button`);
    if (again) again.focus();
  });
  return el('th', {scope: 'col', 'aria-sort': sort, class: column.left ? '' : 'n'}, button);
}

function fillTable() {
  const search = current();
  const rows = sorted(state.visible);
  const body = el('tbody', {});
  for (const row of rows.slice(0, table.shown)) {
    const mark = search.rows.mark[row] || (search.rows.outcome[row] === 'measured' ? '' : 'failed');
    const line = el('tr', {class: mark});
    for (const column of table.columns) line.append(el('td', {class: column.left ? '' : 'n'}, column.text(row)));
    body.append(line);
  }
  const region = $('score-region');
  const old = region.querySelector('table.live');
  const head = el('thead', {}, el('tr', {}, ...table.columns.map(headCell)));
  const made = el('table', {class: 'live'}, el('caption', {}, 'A row for each Config; the headings sort'), head, body);
  if (old) old.replaceWith(made);
  else region.append(made);
  const left = rows.length - Math.min(rows.length, table.shown);
  $('more').hidden = left === 0;
  $('more').textContent = `Show ${Math.min(left, PAGE)} more of ${left.toLocaleString('en')}`;
  const total = search.rows.outcome.length;
  const out = search.rows_left_out ? `; ${search.rows_left_out.toLocaleString('en')} more were tried and are left out of this file, every so many-th of the slower is kept` : '';
  $('filter-count').textContent = `${rows.length.toLocaleString('en')} of ${count(total, 'Config')}${out}`;
}

function startTable() {
  const search = current();
  table.columns = columnsOf(search);
  table.sort = 'rank';
  table.down = false;
  const constant = search.knobs.filter((knob) => !search.varying.includes(knob)).map((knob) => `${knob}=${knobText(search, knob, 0)}`);
  $('constant').textContent = constant.length ? `In all rows: ${constant.join(', ')}` : '';
  applyFilter();
}
