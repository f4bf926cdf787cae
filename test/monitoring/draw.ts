import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';
import type { Series } from '../support/prometheus.ts';

// Draws dashboards as pictures: the panels, titles, positions, queries and units of the dashboard,
// and the numbers of a Prometheus. Grafana's own pictures look better.

export interface Dashboard {
  readonly title: string;
  readonly templating: { readonly list: readonly { readonly query: string }[] };
  readonly panels: readonly {
    readonly title: string;
    readonly type: string;
    readonly gridPos: {
      readonly x: number;
      readonly y: number;
      readonly w: number;
      readonly h: number;
    };
    readonly fieldConfig: { readonly defaults: { readonly unit: string } };
    readonly targets: readonly {
      readonly expr: string;
      readonly legendFormat?: string;
    }[];
  }[];
}

type Panel = Dashboard['panels'][number];
/** A line and its name. */
type Line = {
  readonly name: string;
  readonly points: readonly (readonly [x: number, y: number])[];
};

const COLORS = [
  '#1f77b4',
  '#e4761b',
  '#2a9d4a',
  '#c4342f',
  '#7d56b2',
  '#8a6247',
  '#d15fb0',
  '#5f6b76',
  '#a7a32a',
  '#1aa3b5',
];
const [WIDTH, HEIGHT] = [300, 110];

/** Draws a dashboard into a file. @param ask returns the numbers of a query */
export async function draw(
  { title, panels }: Dashboard,
  file: string,
  ask: (expr: string) => Promise<readonly Series[]>,
): Promise<void> {
  const parts = await Promise.all(
    panels.map(async (panel) => {
      const lines = await Promise.all(
        panel.targets.map(async ({ expr, legendFormat = '' }) =>
          (await ask(expr)).map(({ metric, values }): Line => {
            const name = legendFormat.replace(
              /\{\{(\w+)\}\}/g,
              (_, label: string) => metric[label] ?? '',
            );
            const points = values.map(([at, value]) => [at, Number(value)] as const);
            return { name, points: points.filter(([, y]) => Number.isFinite(y)) };
          }),
        ),
      );
      const { x, y, w, h } = panel.gridPos;
      const place = `grid-area:${y + 1}/${x + 1}/span ${h}/span ${w}`;
      return `<section style="${place}"><h2>${escaped(panel.title)}</h2>${contentOf(panel, lines.flat())}</section>`;
    }),
  );
  const html = `<!doctype html><style>${STYLE}</style><h1>${escaped(title)}</h1><main>${parts.join('')}</main>`;
  const browser = await playwright.launch({
    executablePath: await chromium.executablePath(),
    args: chromium.args,
  });
  try {
    const page = await browser.newPage({ viewport: { width: 1320, height: 600 } });
    await page.setContent(html);
    await page.screenshot({ path: file, fullPage: true });
  } finally {
    await browser.close();
  }
}

const STYLE = `
  body { font: 11px sans-serif; margin: 10px; color: #24292f; background: #f4f5f5 }
  h1 { font-size: 16px; margin: 0 0 8px } h2 { font-size: 11px; margin: 0 0 2px; white-space: nowrap; overflow: hidden }
  main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 19px; gap: 6px }
  section { background: white; border: 1px solid #d8dadd; padding: 5px; overflow: hidden; min-width: 0 }
  b { display: block; font-size: 26px; text-align: center; color: #2a7d3f; padding-top: 6px }
  p { margin: 0; line-height: 13px } span { white-space: nowrap; margin-right: 8px }
  svg { width: 100%; height: auto; display: block } text { font-size: 8px; fill: #57606a }`;

function contentOf({ type, fieldConfig }: Panel, lines: readonly Line[]): string {
  const { unit } = fieldConfig.defaults;
  if (type === 'stat')
    return `<b>${written(lines[0]?.points.at(-1)?.[1] ?? 0, unit)}</b>`;
  const all = lines.flatMap(({ points }) => points);
  const [from, to] = [
    Math.min(...all.map(([at]) => at)),
    Math.max(...all.map(([at]) => at)),
  ];
  const top = Math.max(...all.map(([, y]) => y), unit === 'percentunit' ? 1 : 0) || 1;
  const left = 32;
  const across = (at: number) => left + ((at - from) / (to - from || 1)) * (WIDTH - left);
  const up = (y: number) => HEIGHT - (y / top) * (HEIGHT - 8);
  const grid = [0, 0.5, 1].map((share) => {
    const y = up(top * share);
    return `<path d="M${left} ${y}H${WIDTH}" stroke="#e3e5e8"/><text x="0" y="${y + 3}">${written(top * share, unit)}</text>`;
  });
  const paths = lines.map(({ points }, n) => {
    const d = points
      .map(([at, y], i) => `${i ? 'L' : 'M'}${across(at).toFixed(1)} ${up(y).toFixed(1)}`)
      .join('');
    return `<path d="${d}" fill="none" stroke="${COLORS[n % COLORS.length]}"/>`;
  });
  const names = lines.map(
    ({ name }, n) =>
      `<span style="color:${COLORS[n % COLORS.length]}">▬ ${escaped(name)}</span>`,
  );
  const svg = `<svg viewBox="0 0 ${WIDTH} ${HEIGHT + 5}">${grid.join('')}${paths.join('')}</svg>`;
  return `${svg}<p>${names.join(' ')}</p>`;
}

function written(value: number, unit: string): string {
  if (unit === 'percentunit') return `${Math.round(value * 100)} %`;
  if (unit === 'bytes') return `${Math.round(value / 1e6)} MB`;
  const number = Number(value.toPrecision(3)).toLocaleString('en-US', {
    maximumSignificantDigits: 3,
  });
  if (unit === 's')
    return value < 1 && value > 0
      ? `${Number((value * 1000).toPrecision(3))} ms`
      : `${number} s`;
  return unit === 'none' ? number : `${number}/s`;
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}
