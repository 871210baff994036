// Where it begins: what the data says of itself, the problem that is shown, and Plotly, unpacked.

function show(number) {
  state.search = number;
  const search = current();
  for (const part of document.querySelectorAll('.of')) part.hidden = Number(part.dataset.search) !== number;
  const select = $('search-select');
  if (select) select.value = String(number);
  $('filter').value = '';
  startTable();
  startKnobs();
  raceTable();
  modelFacts();
  redraw();
}

function trouble(text) {
  $('trouble').textContent = text;
  $('trouble').hidden = false;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const signs = atob(base64);
  const bytes = new Uint8Array(signs.length);
  for (let i = 0; i < signs.length; i += 1) bytes[i] = signs.charCodeAt(i);
  return bytes;
}

async function unpackPlotly() {
  const stream = new Blob([bytesOf($('plotly').textContent)]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  if (!window.Plotly) throw new Error('the plots\' script did not run');
}

function listen() {
  let wait = 0;
  $('filter').addEventListener('input', () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      applyFilter();
      redraw();
    }, 150);
  });
  $('more').addEventListener('click', () => {
    table.shown += PAGE;
    fillTable();
    if ($('more').hidden) $('score-region').focus();
  });
  for (const id of ['heat-x', 'heat-y', 'heat-of', 'parallel-most']) $(id).addEventListener('change', redraw);
  for (const button of document.querySelectorAll('button.copy')) {
    button.addEventListener('click', () => copy(button));
  }
  DARK.addEventListener('change', redraw);
  window.addEventListener('beforeprint', () => {
    printing = true;
    redraw();
    figures.forEach(draw);
  });
  window.addEventListener('afterprint', () => {
    printing = false;
    redraw();
  });
}

async function copy(button) {
  const text = button.parentNode.querySelector('pre');
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = 'Copied';
  } catch (error) { // a file that may not write to the clipboard
    getSelection().selectAllChildren(text);
    button.textContent = 'Selected';
  }
}

async function start() {
  document.documentElement.classList.add('scripted');
  DATA.searches.forEach(prepare);
  figure($('heat-plot'), heat);
  figure($('parallel-plot'), parallel);
  figure($('race-left'), left);
  figure($('race-lines'), lines);
  figure($('sure-plot'), beside);
  figure($('model-plot'), predictedPlot);
  figure($('roofline-plot'), roofline);
  if (DATA.searches.length > 1) startSweep();
  listen();
  show(0);
  await new Promise((go) => setTimeout(go)); // what stands there can be read before Plotly is
  try {
    await unpackPlotly();
  } catch (error) {
    trouble(`The plots can't be drawn in this browser (${error.message}); a newer one can. The tables are complete.`);
    return;
  }
  redraw();
}

start();
