"use strict";
// Draws the plots of the page in the colours of its theme, filters their points, and sorts the tables.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Colours in the data are words, with an opacity behind a slash; everything else passes unchanged.
  function coloured(value, key = "") {
    if (Array.isArray(value)) return value.map((item) => coloured(item, key === "colors" ? "color" : ""));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    if (typeof value !== "string" || !/color$/.test(key)) return value;
    const [word, opacity = ""] = value.split("/");
    const color = read(`--${word}`);
    return color ? color + opacity : value;
  }

  const plots = [...document.querySelectorAll("script[data-figure]")].map((script) => {
    const figure = JSON.parse(script.textContent);
    const place = document.getElementById(script.dataset.figure);
    place.classList.toggle("wide", figure.data[0].type === "heatmap");
    const filters = [...document.querySelectorAll(`.filter[data-for="${place.id}"]`)];
    return { figure, place, filters, layer: 0 };
  });

  // Without the points that have a choice which is not ticked; what has no facets is never hidden.
  function shown(data, filters) {
    const ticked = filters.map((f) => new Set([...f.querySelectorAll("input:checked")].map((i) => Number(i.value))));
    const kept = data.map(({ facets, ...trace }) => {
      if (!facets) return trace;
      const keep = (list) => list.filter((_, i) => facets[i].every((value, at) => ticked[at].has(value)));
      return { ...trace, x: keep(trace.x), y: keep(trace.y), hovertext: keep(trace.hovertext) };
    });
    const points = kept.flatMap((trace, i) => (data[i].facets ? trace.x.map((x, j) => [x, trace.y[j]]) : []));
    const front = [];
    for (const point of points.sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
      if (!front.length || point[1] > front[front.length - 1][1]) front.push(point);
    }
    return kept.map(({ isFront, ...trace }) => (
      isFront ? { ...trace, x: front.map((p) => p[0]), y: front.map((p) => p[1]) } : trace));
  }

  async function draw(plot) {
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: read("--text") };
    const data = coloured(shown(plot.figure.data, plot.filters));
    data.forEach((trace, i) => { if (trace.type === "heatmap") trace.visible = i === plot.layer; });
    const layout = {
      ...coloured(plot.figure.layout), font, autosize: true, dragmode: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: read("--panel"), bordercolor: read("--line"), font: { ...font, size: 12 }, align: "left" },
    };
    await Plotly.react(plot.place, data, layout, { displayModeBar: false, responsive: true });
    plot.place.dataset.drawn = Number(plot.place.dataset.drawn || 0) + 1;  // tests wait for it
  }

  for (const choice of document.querySelectorAll(".choice")) {
    const plot = plots.find((p) => p.place.id === choice.dataset.for);
    choice.addEventListener("change", (event) => { plot.layer = Number(event.target.value); draw(plot); });
  }

  for (const plot of plots) {
    for (const filter of plot.filters) filter.addEventListener("change", () => draw(plot));
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
  dark.addEventListener("change", drawAll);
  drawAll();
})();
