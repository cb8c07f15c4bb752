
'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const svgSpace = 'http://www.w3.org/2000/svg';
  let frame = null, direction = 'rx', chosen = false, failures = 0;

  // ---- text

  function scaled(v, unit) {
    let i = 0;
    const prefixes = ['', 'k', 'M', 'G', 'T', 'P'];
    while (v >= 999.5 && i < prefixes.length - 1) { v /= 1000; i++; }
    const digits = i === 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    return v.toFixed(digits) + ' ' + prefixes[i] + unit;
  }
  const bits = (bytes) => scaled(8 * bytes, 'bit/s');
  const percent = (share) => Math.round(100 * share) + ' %';
  const average = (v) => v > 0 ? v.toFixed(1) : '–';
  const short = (key) => key.length > 9 ? key.slice(0, 8) + '…' : key;
  function ago(s) {
    if (s < 0) return 'never';
    if (s < 60) return Math.round(s) + ' s';
    if (s < 3600) return Math.round(s / 60) + ' min';
    return s < 86400 ? Math.round(s / 3600) + ' h' : Math.round(s / 86400) + ' d';
  }
  const plural = (n, what) => n + ' ' + what + (n === 1 ? '' : 's');

  // ---- the diagram: rows of nodes from peers to CPUs, with bands between them

  function shape(tag, attributes, text) {
    const e = document.createElementNS(svgSpace, tag);
    for (const name in attributes) e.setAttribute(name, attributes[name]);
    if (text !== undefined) e.textContent = text;
    return e;
  }

  // spans places values side by side within a width, proportional to their size, with a minimum width.
  function spans(values, width) {
    const gap = values.length > 40 ? 1 : 3;
    const least = Math.min(14, width / Math.max(values.length, 1) - gap);
    const sum = values.reduce((a, b) => a + b, 0);
    const spare = Math.max(width - values.length * (least + gap) + gap, 0);
    let x = 0;
    return values.map((v) => {
      const w = Math.max(least + spare * (sum > 0 ? v / sum : 1 / values.length), 1);
      const span = { x, w };
      x += w + gap;
      return span;
    });
  }

  function band(from, to, y1, y2) {
    const m = (y1 + y2) / 2;
    return shape('path', { class: 'band', d: `M${from.x} ${y1}C${from.x} ${m} ${to.x} ${m} ${to.x} ${y2}H${to.x + to.w}` +
      `C${to.x + to.w} ${m} ${from.x + from.w} ${m} ${from.x + from.w} ${y1}Z` });
  }

  // slices divides a span in proportion to values.
  function slices(span, values) {
    const sum = values.reduce((a, b) => a + b, 0);
    let x = span.x;
    return values.map((v) => {
      const w = sum > 0 ? span.w * v / sum : span.w / values.length;
      const s = { x, w };
      x += w;
      return s;
    });
  }

  const high = 26, between = 34, title = 15;

  class Picture {
    constructor(svg) { this.svg = svg; this.width = Math.max(svg.clientWidth, 200); this.y = 0; this.bands = []; this.nodes = []; }

    node(span, labels, help, fill) {
      const full = fill === undefined;
      const box = (cls, y, h) => this.nodes.push(shape('rect', { class: cls, x: span.x, y, width: span.w, height: h, rx: Math.min(4, span.w / 3) }));
      if (!full) box('bed', this.y, high);
      const h = full ? high : Math.max(high * Math.min(fill, 1), 1);
      box('node' + (fill > 0.9 ? ' hot' : fill > 0.7 ? ' warm' : ''), this.y + high - h, h);
      const last = this.nodes[this.nodes.length - 1];
      last.append(shape('title', {}, help));
      const label = labels.find((l) => span.w > 7 * l.length + 4); // the longest that fits
      if (label) {
        this.nodes.push(shape('text', { x: span.x + span.w / 2, y: this.y + high + 12, 'text-anchor': 'middle' }, label));
      }
    }

    // row draws nodes and returns their spans, where bands begin.
    row(name, items) {
      this.nodes.push(shape('text', { class: 'row', x: 0, y: this.y + 10 }, name));
      this.y += title;
      const at = spans(items.map((i) => i.value), this.width);
      items.forEach((item, i) => this.node(at[i], item.labels, item.help, item.fill));
      const row = { at, values: items.map((i) => i.value), top: this.y, bottom: this.y + high };
      this.y += high + 16;
      return row;
    }

    bar(label) { // the device that all nodes of a row pass through
      const span = { x: 0, w: this.width };
      this.y += between;
      this.nodes.push(shape('rect', { class: 'bed', x: 0, y: this.y, width: span.w, height: 18, rx: 4 }));
      this.nodes.push(shape('text', { x: 8, y: this.y + 13 }, label));
      const bar = { span, top: this.y, bottom: this.y + 18 };
      this.y += 18 + between - title;
      return bar;
    }

    into(row, bar) { slices(bar.span, row.values).forEach((to, i) => this.bands.push(band(row.at[i], to, row.bottom, bar.top))); }
    outOf(bar, row) { slices(bar.span, row.values).forEach((from, i) => this.bands.push(band(from, row.at[i], bar.bottom, row.top))); }

    done(words) {
      this.svg.setAttribute('height', this.y);
      this.svg.setAttribute('viewBox', `0 0 ${this.width} ${this.y}`);
      this.svg.setAttribute('aria-label', words);
      this.svg.replaceChildren(...this.bands, ...this.nodes);
    }
  }

  function draw() {
    const p = new Picture(byId('picture'));
    const rate = direction + '_bytes_per_second';
    const peers = frame.peers.map((q) => ({ value: q[rate], labels: [`${short(q.public_key)}  ${bits(q[rate])}`, short(q.public_key)], help: `peer ${q.public_key}: ${bits(q[rate])}` }));
    if (frame.others.count > 0) {
      peers.push({ value: frame.others[rate], labels: [`${plural(frame.others.count, 'peer')}  ${bits(frame.others[rate])}`, plural(frame.others.count, 'peer')], help: `${plural(frame.others.count, 'peer')}: ${bits(frame.others[rate])}` });
    }
    let above = peers.length > 0 ? p.row('peers', peers) : null;
    const tunnel = p.bar(`${frame.interface}  ${bits(frame[direction].bytes_per_second)}`);
    if (above) p.into(above, tunnel);
    const lanes = p.row('lanes', frame.lanes.filter((l) => l.lane !== 'slow' || l[direction].bytes_per_second > 0).map((l) => ({
      value: l[direction].bytes_per_second, labels: [`${l.lane}  ${bits(l[direction].bytes_per_second)}`, l.lane], help: `lane ${l.lane}: ${bits(l[direction].bytes_per_second)}, ${average(l[direction].packets_per_train)} packets per train` })));
    p.outOf(tunnel, lanes);
    const counted = frame.queues.every((q) => direction === 'rx' ? q.rx_counted : q.tx_counted);
    const load = (q) => counted ? q[direction].packets_per_second : q.interrupts_per_second;
    let queues = null;
    if (frame.queues.length > 0) {
      const nic = p.bar(`${[...new Set(frame.queues.map((q) => q.device))].join(', ')}${direction === 'tx' && !counted ? '  (interrupts)' : ''}`);
      p.into(lanes, nic);
      queues = p.row('queues', frame.queues.map((q) => ({ value: load(q), labels: [`${q.queue}  ${scaled(load(q), counted ? 'pps' : 'irq/s')}`, String(q.queue)],
        help: `${q.device} queue ${q.queue}: ` + (counted ? scaled(load(q), 'packets/s') : scaled(load(q), 'interrupts/s')) })));
      p.outOf(nic, queues);
      p.y += between;
    }
    const cores = p.row('CPUs',  frame.cores.map((c) => ({ value: 0, fill: c.busy, labels: [`cpu${c.cpu}  ${percent(c.busy)}`, percent(c.busy), String(c.cpu)], help: `cpu${c.cpu}: ${percent(c.busy)} busy, ${percent(c.softirq)} softirq` })));
    if (queues) interruptBands(p, queues, cores, load);
    p.done(`${bits(frame[direction].bytes_per_second)} ${direction === 'rx' ? 'rx' : 'tx'} over ${plural(frame.lanes.length - 1, 'lane')}`);
  }

  // interruptBands draws which CPU handled how much of each queue's interrupts.
  function interruptBands(p, queues, cores, load) {
    const parts = [];
    frame.queues.forEach((q, i) => slices(queues.at[i], q.cores.map((c) => c.share)).forEach((from, j) =>
      parts.push({ from, core: frame.cores.findIndex((c) => c.cpu === q.cores[j].cpu), value: load(q) * q.cores[j].share })));
    frame.cores.forEach((_, at) => {
      const mine = parts.filter((x) => x.core === at);
      slices(cores.at[at], mine.map((x) => x.value)).forEach((to, i) => p.bands.push(band(mine[i].from, to, queues.bottom, cores.top)));
    });
  }

  // ---- the tables

  function fill(id, titles, rows) {
    const section = byId(id);
    section.hidden = rows.length === 0;
    const line = (tag, cells) => {
      const tr = document.createElement('tr');
      for (const text of cells) {
        const e = document.createElement(tag);
        e.textContent = text;
        tr.append(e);
      }
      return tr;
    };
    section.querySelector('table').replaceChildren(line('th', titles), ...rows.map((r) => line('td', r)));
  }

  function tables() {
    fill('lanes', ['lane', 'rx', 'tx', 'packets/train', 'drops/s'], frame.lanes.map((l) => [l.lane, bits(l.rx.bytes_per_second), bits(l.tx.bytes_per_second),
      average(l[direction].packets_per_train), scaled(l.drops_per_second, '')]));
    fill('peers', ['peer', 'rx', 'tx', 'handshake', 'ports'], frame.peers.map((p) => [short(p.public_key), bits(p.rx_bytes_per_second), bits(p.tx_bytes_per_second),
      ago(p.handshake_age_seconds), p.spread_ports || '–']));
    fill('queues', ['queue', 'rx', 'tx', 'IRQ/s'], frame.queues.map((q) => [`${q.device} ${q.queue}`,
      q.rx_counted ? scaled(q.rx.packets_per_second, 'pps') : '–', q.tx_counted ? scaled(q.tx.packets_per_second, 'pps') : '–', scaled(q.interrupts_per_second, '')]));
    fill('cores', ['CPU', 'busy', 'softirq', 'NET_RX/s'], frame.cores.map((c) => ['cpu' + c.cpu, percent(c.busy), percent(c.softirq), scaled(c.net_rx_per_second, '')]));
    fill('drops', ['reason', 'drops/s', 'total'], frame.drops.map((d) => [d.help || d.reason, scaled(d.packets_per_second, ''), scaled(d.packets, '')]));
  }

  function head() {
    byId('name').textContent = frame.interface;
    document.title = `${frame.interface} · ropewalk`;
    byId('state').textContent = [frame.up ? 'up' : 'down', plural(frame.lanes.length - 1, 'lane'), plural(frame.peer_count, 'peer'), ...frame.features].join(' · ') +
      (frame.seconds > 0 ? '' : ' · measuring');
    for (const id of ['rx', 'tx']) {
      const button = byId(id), flow = frame[id];
      button.setAttribute('aria-pressed', String(id === direction));
      button.querySelector('b').textContent = bits(flow.bytes_per_second);
      button.querySelector('small').textContent = `${scaled(flow.packets_per_second, 'pps')}, ${average(flow.packets_per_train)} packets/train`;
    }
    const words = [];
    for (const kind of ['lanes', 'queues', 'cores']) {
      const b = frame.balance[kind];
      if (b.busiest_over_mean > 0) words.push(`${kind === 'lanes' ? 'lane ' : ''}${b.busiest} ${b.busiest_over_mean.toFixed(2)} × the mean of ${kind === 'cores' ? 'CPUs' : kind}`);
    }
    byId('balance').textContent = words.length > 0 ? 'Busiest: ' + words.join('; ') : '';
  }

  function show() {
    if (!frame) return;
    if (!chosen && frame.seconds > 0) direction = frame.tx.bytes_per_second > frame.rx.bytes_per_second ? 'tx' : 'rx';
    head();
    draw();
    tables();
  }

  // ---- once per second

  function trouble(text) {
    const e = byId('trouble');
    e.hidden = text === '';
    e.textContent = text;
    document.body.classList.toggle('old', text !== '');
  }

  async function fetchFrame() {
    const limit = AbortSignal.timeout(8000);
    const reply = await fetch('live.json', { cache: 'no-store', signal: limit });
    if (!reply.ok) throw new Error(`the daemon returned HTTP status ${reply.status}`);
    return reply.json();
  }

  async function tick() {
    try {
      if (!document.hidden) {
        frame = await fetchFrame();
        show();
        failures = 0;
        trouble('');
      }
    } catch (e) {
      failures++;
      trouble(`Update failed: ${e.message}. Retrying.`);
    }
    setTimeout(tick, Math.min(1000 * 2 ** failures, 10000));
  }

  for (const id of ['rx', 'tx']) byId(id).addEventListener('click', () => { direction = id; chosen = true; show(); });
  addEventListener('resize', show);
  addEventListener('error', (e) => trouble(`Script error: ${e.message}`));
  tick();
})();
