// What a reader would stumble over: texts that cross, and words that are broken inside. All <details> are open.
() => {
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const separators = "\\s._/,:=()-";
  const texts = [];   // {text, corners}: each line of each text with its four corners on the screen
  const broken = [];

  const corners = (box, point) => {
    // A tenth of the height at top and bottom is room of the font, not ink; a pixel is tolerance.
    const dy = box.height / 10, [l, t, r, b] = [box.x + 1, box.y + dy, box.x + box.width - 1, box.y + box.height - dy];
    return [[l, t], [r, t], [r, b], [l, b]].map(([x, y]) => point(x, y));
  };
  for (const text of document.querySelectorAll(".plot svg text")) {
    if (!text.textContent.trim() || text.closest(".hoverlayer") || getComputedStyle(text).display === "none") continue;
    const at = text.getScreenCTM();
    texts.push({ text: text.textContent, corners: corners(text.getBBox(), (x, y) => {
      const p = new DOMPoint(x, y).matrixTransform(at);
      return [p.x, p.y];
    }) });
    const lines = [...text.querySelectorAll("tspan.line")].map(l => l.textContent);
    lines.slice(1).forEach((line, i) => {
      if (/[A-Za-z0-9]$/.test(lines[i]) && /^[A-Za-z0-9]/.test(line)) broken.push(lines[i] + "|" + line);
    });
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, svg, fieldset legend") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width > 2) texts.push({ text: node.data, corners: corners(box, (x, y) => [x, y]) });
    }
    for (const word of node.data.matchAll(new RegExp(`[^${separators}]{1,30}`, "g"))) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(word[0]);
    }
  }
  // Two convex figures are apart if a side of one of them separates them.
  const apart = (a, b) => [[a, b], [b, a]].some(([one, other]) => one.some(([x, y], i) => {
    const [u, v] = one[(i + 1) % 4];
    return other.every(([p, q]) => (u - x) * (q - y) - (v - y) * (p - x) <= 0);
  }));
  const ends = texts.map(t => ({ ...t, top: Math.min(...t.corners.map(c => c[1])), bottom: Math.max(...t.corners.map(c => c[1])) }));
  ends.sort((a, b) => a.top - b.top);
  const crossing = [];
  ends.forEach((a, i) => {
    for (let j = i + 1; j < ends.length && ends[j].top < a.bottom; j++) {
      if (!apart(a.corners, ends[j].corners)) crossing.push([a.text, ends[j].text]);
    }
  });
  return { crossing, broken, texts: texts.length };
}
