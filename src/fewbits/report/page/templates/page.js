"use strict";
// Draws the plots of the page in the colours of its theme, and sorts the tables.
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
    return { figure, place, layer: 0 };
  });

  async function draw(plot) {
    const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: read("--text") };
    const data = coloured(plot.figure.data);
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
