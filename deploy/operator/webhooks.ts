import { isIP } from 'node:net';
import { type Command, Option } from 'commander';
import { isSharedSuffix, registrableDomain } from '../../activities/verification/domains.ts';
import { blockOf, isBlocked } from '../../activities/webhooks/ip-policy.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { clock, type Database, query } from '../../db/client.ts';
import { listBlocks, listPendingHosts, setBlock } from '../../db/webhooks/hosts.ts';
import {
  type LoggedDelivery,
  listOrganizationDeliveries,
  showDelivery,
} from '../../db/webhooks/log.ts';
import { type OperatorOutcome, resendAny, resendFailed } from '../../db/webhooks/resends.ts';
import { DELIVERY_STATES, type DeliveryState } from '../../db/words.ts';
import {
  change,
  lists,
  OF_ORG,
  ORG,
  parser,
  pastMoment,
  type Revealing,
  revealed,
  revealing,
} from './arguments.ts';
import {
  type CommandSurroundings,
  counted,
  fields,
  type Report,
  type Run,
  sections,
  table,
} from './print.ts';

const REVEAL = 'webhooks.reveal';

/** Deliveries per transaction, which locks a row for each. */
const RESEND_AT_ONCE = 500;

interface Selected extends Revealing {
  readonly organization?: string;
  readonly state?: DeliveryState;
}

interface ResendOptions extends ChangedBy {
  readonly failed?: true;
  readonly organization?: string;
  readonly since?: Date;
}

/** Adds `webhooks`. */
export function addCommands(program: Command, run: Run, { output }: CommandSurroundings): void {
  const webhooks = program
    .command('webhooks')
    .description(
      "look at webhook deliveries, send them again, suspend an organization's, block receivers",
    );
  const list = webhooks.command('list').description('deliveries, newest first');
  lists<ReturnType<typeof presented>, Selected>(
    revealing(list, 'URLs')
      .option(...OF_ORG)
      .addOption(new Option('--state <STATE>', 'only those').choices(DELIVERY_STATES)),
    run,
    'createdAt',
    async (db, { organization: organizationId = null, state = null, limit, ...by }) => {
      const { deliveries } = await listOrganizationDeliveries(db, { organizationId, state, limit });
      const reading = { action: REVEAL, organizationId, subject: organizationId ?? 'all' } as const;
      return (await revealed(db, deliveries, by, reading)).map(presented);
    },
    ({ log: _log, ...rest }) => rest,
  );
  revealing(webhooks.command('show'), 'the URL and what the receiver answered')
    .description('a delivery with its attempts')
    .argument('<DELIVERY>', 'delivery id (msg_…), the webhook-id that the receiver saw')
    .action((id: string, by: Revealing) =>
      run(async (db) => {
        const delivery = await showDelivery(db, id);
        const { organizationId } = delivery;
        const reading = { action: REVEAL, organizationId, subject: id } as const;
        const data = presented(await revealed(db, delivery, by, reading));
        const { log, ...rest } = data;
        return { data, text: sections([fields(rest), 'ATTEMPTS KEPT', table(log)]) };
      }),
    );
  change(webhooks, 'resend', 'send decided deliveries again')
    .argument('[DELIVERY...]', 'delivery ids (msg_…)')
    .option('--failed', 'in place of ids: everything that failed, of --organization, --since')
    .option(...OF_ORG)
    .option('--since <WHEN>', 'failed since then, such as 24h or 2026-11-20T00:00Z', pastMoment)
    .action((ids: string[], options: ResendOptions, command: Command) => {
      const { failed, organization, since } = options;
      const isWhole =
        failed && organization !== undefined && since !== undefined && ids.length === 0;
      const isNamed =
        !failed && organization === undefined && since === undefined && ids.length > 0;
      if (isWhole)
        return run((db) => resendAllFailed(db, options, organization, since, output.line));
      if (isNamed) return run((db) => resendNamed(db, options, ids));
      return command.error('error: give delivery ids, or --failed with --organization and --since');
    });
  for (const [name, suspended, description] of [
    [
      'suspend',
      true,
      'submits get no deliveries from now on (webhook.status "none"); pending ones are held',
    ],
    [
      'resume',
      false,
      'submits get deliveries again from now on; what was held goes on within 5 minutes',
    ],
  ] as const) {
    change(webhooks, name, description)
      .argument(...ORG)
      .action((id: string, by: ChangedBy) => run((db) => suspendWebhooks(db, by, id, suspended)));
  }
  for (const [name, blocked, description] of [
    [
      'block',
      true,
      'send nothing there, for any organization: what is pending fails with its next attempt',
    ],
    ['unblock', false, 'end that; what failed meanwhile is sent again by "webhooks resend"'],
  ] as const) {
    const command = change(webhooks, name, description).argument('<TARGET>', TARGET, blockTarget);
    if (blocked) command.option('--yes', YES);
    command.action((target: string, { yes, ...options }: ChangedBy & { readonly yes?: true }) =>
      run(async (db) => {
        const reach = blocked && !yes ? reachOf(target) : null;
        if (reach !== null) return await unconfirmed(db, target, reach);
        const changed = await setBlock(db, options, target, blocked);
        const outcome = `${changed ? '' : 'was '}${name}ed${changed ? '' : ' already; nothing was changed'}`;
        return { target, outcome };
      }),
    );
  }
  const blocks = webhooks.command('blocks').description('targets that are blocked, newest first');
  lists(blocks, run, 'since', (db) => listBlocks(db));
}

const YES =
  'also a range wider than /24 (IPv6: /48), a public suffix, or a whole registrable domain';

/** Returns why a block reaches so far that it needs `--yes`, or null if it does not. */
function reachOf(target: string): string | null {
  const [ip = '', bits] = target.split('/');
  if (bits !== undefined) {
    const widest = isIP(ip) === 6 ? 48 : 24;
    return Number(bits) < widest
      ? `a range of 2^${(isIP(ip) === 6 ? 128 : 32) - Number(bits)} addresses`
      : null;
  }
  if (isSharedSuffix(target)) return 'a public suffix: everybody has names below it';
  return registrableDomain(target) === target
    ? 'a registrable domain: all names below it as well'
    : null;
}

/** Reports what a block would stop now. */
async function unconfirmed(db: Database, target: string, reach: string): Promise<Report> {
  const pending = await listPendingHosts(db);
  const hit = pending.filter(({ host }) => isBlocked(host.replace(/^\[(.*)\]$/, '$1'), [target]));
  const counts = {
    pendingDeliveries: hit.reduce((sum, { deliveries }) => sum + deliveries, 0),
    hosts: new Set(hit.map(({ host }) => host)).size,
    organizations: new Set(hit.map(({ organizationId }) => organizationId)).size,
  };
  const names = pending.filter(({ host }) => isIP(host.replace(/^\[(.*)\]$/, '$1')) === 0);
  const data = { target, blocked: false, reach, ...counts };
  const parts = [fields(data)];
  if (target.includes('/')) {
    const hosts = new Set(names.map(({ host }) => host)).size;
    parts.push(
      `${counted(hosts, 'more host')} with pending deliveries ${hosts === 1 ? 'is a name' : 'are names'}: their addresses are not known here.`,
    );
  }
  parts.push('Nothing was blocked: add --yes to block it.');
  return { data, text: parts.join('\n\n'), exitCode: 1 };
}

const TARGET = 'an address, a range such as 192.0.2.0/24, or a host (all names below it included)';

const blockTarget = parser(TARGET, (text) => blockOf(text.trim()));

async function resendNamed(db: Database, by: ChangedBy, ids: readonly string[]): Promise<Report> {
  const data: { readonly delivery: string; readonly outcome: OperatorOutcome['kind'] }[] = [];
  for (const id of ids) data.push({ delivery: id, outcome: (await resendAny(db, by, id)).kind });
  const text = table(
    data.map(({ delivery, outcome }) => ({ delivery, outcome: OUTCOMES[outcome] })),
  );
  return { data, text, exitCode: data.some(({ outcome }) => outcome !== 'resent') ? 1 : 0 };
}

const OUTCOMES: Readonly<Record<OperatorOutcome['kind'], string>> = {
  resent: 'pending: the sweep starts it within SWEEP_INTERVAL',
  pending: 'left alone: it is on its way already, or its result is not there yet',
  suspended: 'left alone: webhooks of its organization are suspended ("webhooks resume ORG")',
  unknown: 'unknown; "webhooks list" and "batch show BATCH" show ids',
};

/**
 * Resends failed deliveries in transactions of bounded size. Safe to repeat after an interruption,
 * because resent deliveries are not failed any more.
 */
async function resendAllFailed(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  since: Date,
  progress: (line: string) => void,
): Promise<Report> {
  // Skips deliveries that fail again during the loop. A blocked receiver fails at once, so the loop
  // would never end.
  const until = await query(db, clock);
  let resent = 0;
  for (;;) {
    const batch = await resendFailed(db, by, {
      organizationId,
      since,
      until,
      limit: RESEND_AT_ONCE,
    });
    resent += batch.resent;
    if (!batch.more) break;
    progress(`${resent} deliveries resent, more to come\n`);
  }
  const data = { organizationId, since, resent };
  const closing =
    resent === 0
      ? 'Nothing has failed since then: there is nothing to send.'
      : 'The sweep starts them, in rounds (SWEEP_INTERVAL).';
  return { data, text: `${fields(data)}\n\n${closing}` };
}

function presented({ log, ...delivery }: LoggedDelivery) {
  return { ...delivery, lastReason: log.at(-1)?.reason ?? null, log };
}
