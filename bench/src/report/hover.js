// Shows the nearest point's figures; without it the browser shows them on the point itself.
const readout = document.createElement("div");
readout.id = "readout";
readout.hidden = true;
document.body.append(readout);
for (const chart of document.querySelectorAll("svg.wide, svg.narrow")) {
  const targets = [...chart.querySelectorAll(".target, .part")].map((element) => {
    const title = element.querySelector("title");
    const words = title.textContent;
    title.remove();
    return { element, words };
  });
  let near = null;
  const leave = () => { near?.element.classList.remove("near"); near = null; readout.hidden = true; };
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("pointermove", (event) => {
    leave();
    let least = 40;
    for (const target of targets) {
      const box = target.element.getBoundingClientRect();
      const across = Math.max(box.left - event.clientX, event.clientX - box.right, 0);
      const down = Math.max(box.top - event.clientY, event.clientY - box.bottom, 0);
      const centre = Math.hypot(box.left + box.width / 2 - event.clientX, box.top + box.height / 2 - event.clientY);
      const distance = Math.hypot(across, down) + centre / 1000;
      if (distance < least) { least = distance; near = target; }
    }
    if (!near) return;
    near.element.classList.add("near");
    readout.textContent = near.words;
    readout.hidden = false;
    const left = Math.min(event.pageX + 14, scrollX + document.documentElement.clientWidth - readout.offsetWidth - 8);
    readout.style.left = Math.max(left, 4) + "px";
    readout.style.top = event.pageY + 16 + "px";
  });
}
