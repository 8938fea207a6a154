// The live tail: rows of server-sent events. Each cell is set as text, so that no record is ever markup.
"use strict";
{
  const ROWS_MAX = 200;
  const rows = document.getElementById("tail");
  const state = document.getElementById("state");
  const pause = document.getElementById("pause");
  let paused = false;

  const cell = (row, text, quiet) => {
    const pre = document.createElement("pre");
    pre.textContent = text;
    const td = row.insertCell();
    td.append(pre);
    if (quiet) {
      const note = document.createElement("span");
      note.className = "quiet";
      note.textContent = quiet;
      td.append(note);
    }
  };

  const show = (found) => {
    for (const record of paused ? [] : found.records) {
      const row = rows.insertRow(0);
      for (const name of ["partition", "offset", "time", "key"]) cell(row, String(record[name]));
      cell(row, record.value, record.note);
    }
    while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
    const number = (count) => count.toLocaleString("en");
    state.textContent = `${paused ? "Paused" : "Following"}: ${number(found.read)} read, ${number(found.matched)} ` +
      `matching, ${number(found.skipped)} skipped because they came too fast.`;
  };

  const source = new EventSource(rows.dataset.events);
  source.addEventListener("begin", () => { state.textContent = "Following: waiting for new records."; });
  source.addEventListener("records", (event) => show(JSON.parse(event.data)));
  source.addEventListener("problem", (event) => {
    state.textContent = JSON.parse(event.data).words;
    source.close();
  });
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.OPEN) state.textContent = "Not connected.";
  });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
  });
}
