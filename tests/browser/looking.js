// What is wrong with a page as it is drawn, as a list of sentences. Called with the least size of text in pictures.
(least) => {
  const problems = [];
  const say = (what, element) => problems.push(`${what}: ${(element.textContent || element.getAttribute("class") || element.tagName).trim().slice(0, 60)}`);

  const numbers = (color) => {
    const found = color.match(/[\d.]+/g).map(Number);
    return found.length > 3 ? found : [...found, 1];
  };
  const light = (color) => {
    const [r, g, b] = color.map((c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    const cell = element.closest("g") && element.closest("g").querySelector("rect.cell");
    if (cell) return numbers(getComputedStyle(cell).fill);
    for (let at = element; at; at = at.parentElement) {
      const color = numbers(getComputedStyle(at).backgroundColor);
      if (color[3] > 0) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const shown = (element) => element.checkVisibility() && element.getBoundingClientRect().width > 0;
  const words = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());

  if (document.documentElement.scrollWidth > innerWidth) problems.push("the page is wider than the window");

  for (const element of document.querySelectorAll("body *")) {
    if (["STYLE", "SCRIPT", "title"].includes(element.tagName) || !words(element) || !shown(element)) continue;
    const style = getComputedStyle(element);
    const color = numbers(element.tagName === "text" ? style.fill : style.color);
    if (contrast(color, behind(element)) < 4.5) say("contrast below 4.5", element);
  }

  for (const table of document.querySelectorAll("table")) {
    if (!shown(table)) continue;
    let box = table.parentElement;
    while (box !== document.body && !["auto", "scroll"].includes(getComputedStyle(box).overflowX)) box = box.parentElement;
    const edge = box === document.body ? innerWidth : box.getBoundingClientRect().left + box.scrollWidth;
    if (table.getBoundingClientRect().right > edge + 1) say("a table leaves its box", table);
    if (box !== document.body && box.scrollWidth > box.clientWidth + 1) {
      box.scrollLeft = 100000;
      const first = table.querySelector("tbody td");
      const left = first ? first.getBoundingClientRect().left - box.getBoundingClientRect().left : 0;
      if (first && box.matches(".wide:not(.words)") && Math.abs(left) > 2) say("the first column scrolls away", table);
      box.scrollLeft = 0;
    }
  }

  for (const figure of document.querySelectorAll("figure")) {
    if (!figure.querySelector("svg[role=img]") && !figure.textContent.includes("no values")) say("a figure without a picture", figure);
  }
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll("circle, polygon, polyline, rect.cell, rect[class^=line]")].filter((mark) => {
      const box = mark.getBoundingClientRect();
      return (box.width > 0.5 || box.height > 0.5) && getComputedStyle(mark).visibility !== "hidden";
    });
    if (!marks.length) problems.push(`an empty plot: ${svg.getAttribute("aria-label")}`);
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      const out = box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
      if (out) say("a mark leaves its picture", mark);
    }
    const texts = [...svg.querySelectorAll("text")].filter(shown).map((text) => ({ text, box: text.getBoundingClientRect() }));
    const scale = frame.width / svg.viewBox.baseVal.width;
    for (const { text, box } of texts) {
      const out = box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
      if (out) say("text leaves its picture", text);
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < least) say(`text of ${size.toFixed(1)} px`, text);
    }
    texts.forEach(({ text, box }, number) => {
      for (const other of texts.slice(number + 1)) {
        const across = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
        const down = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
        if (across > 0.5 && down > 1) say(`overlaps '${other.text.textContent.slice(0, 30)}'`, text);
      }
    });
  }
  return problems;
}
