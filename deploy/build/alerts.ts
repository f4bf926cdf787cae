import { readFile, writeFile } from 'node:fs/promises';
import { FAILING, LIMITS } from '../limits.ts';

// Renders the group `limits` of deploy/prometheus/alerts.yaml from the table of limits. Run it after
// each change of the table.

const ALERTS = new URL('../prometheus/alerts.yaml', import.meta.url);

/** The group is the last one of the file. */
const GROUP = '  - name: limits\n    rules:\n';

const SETTLED = 'npe_requests_settled_total';

/** The same counts as those of `status`. */
const FAILING_EXPRESSION = `|
          100 * sum(rate(${SETTLED}{status="failed",sandbox="false"}[15m]))
            / sum(rate(${SETTLED}{sandbox="false"}[15m])) > ${FAILING.maxPercent}
          and sum(increase(${SETTLED}{status="failed",sandbox="false"}[15m])) > ${FAILING.maxCount}`;

type Limit = (typeof LIMITS)[number];

/** Returns the text of alerts.yaml with the group `limits` as the table says. */
export function withLimits(text: string): string {
  const start = text.indexOf(GROUP);
  if (start === -1) {
    throw new Error('alerts.yaml has no group "limits"');
  }
  const rules = LIMITS.map((limit) =>
    ruleOf(limit, `max(${limit.stat}) > ${limit.max}`, limit.stat),
  );
  rules.push(ruleOf(FAILING, FAILING_EXPRESSION, SETTLED));
  return text.slice(0, start) + GROUP + rules.join('\n');
}

/** Alerts with the same name have different labels `stat`, because Alertmanager merges equal ones. */
function ruleOf(
  { alert, severity, lasts, impact, problem, runbook }: Omit<Limit, 'stat' | 'max'>,
  expression: string,
  stat: string,
): string {
  const wait = lasts === null ? '' : `        for: ${lasts}\n`;
  const summary = `${impact.charAt(0).toUpperCase()}${impact.slice(1)}: ${problem}.`;
  return `      - alert: ${alert}
        expr: ${expression}
${wait}        labels: { severity: ${severity}, stat: ${stat} }
        annotations:
          summary: '${summary}'
          runbook_url: '{{ $externalLabels.runbooks }}/${runbook}'
`;
}

if (import.meta.main) {
  await writeFile(ALERTS, withLimits(await readFile(ALERTS, 'utf8')));
}
