"use strict";
// Draws the plots of the page in the colours of its theme, labels the points, and sorts the tables.
(() => {
  const LABEL_FONT = 12;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Colours in the data are words; everything else passes unchanged.
  function coloured(value, key = "") {
    if (Array.isArray(value)) return value.map((item) => coloured(item));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    return typeof value === "string" && /color$/.test(key) ? read(`--${value}`) || value : value;
  }

  const plots = [...document.querySelectorAll("script[data-figure]")].map((script) => {
    const figure = JSON.parse(script.textContent);
    const place = document.getElementById(script.dataset.figure);
    place.classList.toggle("wide", figure.data[0].type === "heatmap");
    return { figure, place, layer: 0 };
  });

  async function draw(plot) {
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: read("--text") };
    const data = coloured(plot.figure.data);
    data.forEach((trace, i) => { if (trace.type === "heatmap") trace.visible = i === plot.layer; });
    const layout = {
      ...coloured(plot.figure.layout), font, autosize: true, dragmode: false, annotations: [],
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: read("--panel"), bordercolor: read("--line"), font: { ...font, size: 12 }, align: "left" },
    };
    await Plotly.react(plot.place, data, layout, { displayModeBar: false, responsive: false });
    await label(plot);
    plot.place.dataset.drawn = Number(plot.place.dataset.drawn || 0) + 1;  // tests wait for it
  }

  // Puts each name beside its point where it covers neither a point nor another name; formats on the front first.
  // A name without room is left out: pointing at the point shows it.
  async function label(plot) {
    if (!plot.figure.labels.length) return;
    const { xaxis, yaxis } = plot.place._fullLayout;
    const [width, height] = [xaxis._length, yaxis._length];
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${LABEL_FONT}px ${getComputedStyle(document.body).fontFamily}`;
    const spell = document.createElement("textarea");
    const points = plot.figure.labels.map((item) => {
      spell.innerHTML = item.text;
      const [x, y] = [xaxis.d2p(item.x), yaxis.d2p(item.y)];
      return { ...item, left: x, top: y, wide: pen.measureText(spell.value).width + 6, high: LABEL_FONT + 6 };
    });
    const taken = points.map((p) => [p.left - 7, p.top - 7, p.left + 7, p.top + 7]);
    // Names keep off lines too where they can: the front, the bars, and lines across the whole plot.
    const lines = [
      ...steps(points.filter((p) => p.front)),
      ...points.map((p) => upright(p.left, ...p.bar.map((end) => yaxis.d2p(end)))),
      ...plot.figure.layout.shapes.filter((s) => s.type === "line").map((s) => level(0, width, yaxis.d2p(s.y0))),
    ];
    const clear = (a, b) => a[2] <= b[0] || a[0] >= b[2] || a[3] <= b[1] || a[1] >= b[3];
    const fits = (a) => a[0] >= 0 && a[1] >= 0 && a[2] <= width && a[3] <= height && taken.every((t) => clear(a, t));
    const annotations = [];
    for (const p of [...points].sort((a, b) => b.front - a.front || a.left - b.left)) {
      const open = spots(p).filter(([dx, dy]) => fits(box(p, dx, dy)));
      const spot = open.find(([dx, dy]) => lines.every((line) => clear(box(p, dx, dy), line))) || open[0];
      if (!spot) continue;
      taken.push(box(p, ...spot));
      const far = !BESIDE.some((beside) => beside(p).every((offset, i) => offset === spot[i]));
      annotations.push({
        x: p.x, y: p.y, ax: spot[0], ay: spot[1], text: p.text, showarrow: true, arrowhead: 0, arrowwidth: 1,
        arrowcolor: far ? read("--muted") : "rgba(0,0,0,0)", standoff: 6, borderpad: 1, captureevents: false,
        font: { size: LABEL_FONT, color: read(p.front ? "--accent" : "--soft") },
      });
    }
    await Plotly.relayout(plot.place, { annotations });
  }

  // The boxes that the line of the Pareto front covers: along to the next point, then up or down to it.
  function steps(front) {
    const line = [...front].sort((a, b) => a.left - b.left);
    return line.slice(1).flatMap((b, i) => {
      const a = line[i];
      return [level(a.left, b.left, a.top), upright(b.left, a.top, b.top)];
    });
  }
  const level = (from, to, top) => [from, top - 1, to, top + 1];
  const upright = (left, one, other) => [left - 1, Math.min(one, other), left + 1, Math.max(one, other)];

  const box = (p, dx, dy) => [
    p.left + dx - p.wide / 2, p.top + dy - p.high / 2, p.left + dx + p.wide / 2, p.top + dy + p.high / 2,
  ];

  const BESIDE = [(p) => [p.wide / 2 + 9, 0], () => [0, -18], () => [0, 18], (p) => [-p.wide / 2 - 9, 0]];

  // Offsets of a name's middle from its point: near ones first, then farther up and down with a leading line.
  function spots(p) {
    const beside = p.wide / 2 + 9;
    const found = BESIDE.map((offset) => offset(p));
    for (const rise of [14, 28, 44, 60, 78, 96, 116, 140, 170]) {
      for (const dy of [-rise, rise]) {
        for (const dx of [beside * 0.8, -beside * 0.8, beside * 1.6, -beside * 1.6]) found.push([dx, dy]);
        if (rise > 20) found.push([0, dy]);
      }
    }
    return found;
  }

  for (const choice of document.querySelectorAll(".choice")) {
    const plot = plots.find((p) => p.place.id === choice.dataset.for);
    choice.addEventListener("change", (event) => { plot.layer = Number(event.target.value); draw(plot); });
  }

  function sortBy(table, column, direction) {
    const body = table.tBodies[0];
    const value = (row) => row.cells[column].dataset.value;
    const number = table.tHead.rows[0].cells[column].classList.contains("number");
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (number && (x === "" || y === "")) return (x === "") - (y === "");  // what has no value stays last
      return direction * (number ? Number(x) - Number(y) || 0 : x.localeCompare(y, "en", { numeric: true }));
    };
    body.append(...[...body.rows].sort(compare));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => { if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sortBy(table, column, up ? 1 : -1);
    }));
  }

  const drawAll = () => Promise.all(plots.map(draw));
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 120); });
  dark.addEventListener("change", drawAll);
  drawAll();
})();
