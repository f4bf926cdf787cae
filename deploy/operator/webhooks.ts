import { isIP } from 'node:net';
import { type Command, Option } from 'commander';
import {
  isSharedSuffix,
  registrableDomain,
} from '../../activities/verification/domains.ts';
import { blockOf, isBlocked } from '../../activities/webhooks/ip-policy.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { clock, type Database, query } from '../../db/client.ts';
import { listBlocks, listPendingHosts, setBlock } from '../../db/webhooks/blocks.ts';
import {
  type LoggedDelivery,
  listOrganizationDeliveries,
  showDelivery,
} from '../../db/webhooks/log.ts';
import {
  type OperatorOutcome,
  resendAny,
  resendFailed,
} from '../../db/webhooks/resends.ts';
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

/**
 * Maximum number of deliveries that are resent in one transaction. The limit keeps the number of
 * locked rows small, because the transaction locks the row of each delivery.
 */
const MAX_RESENDS = 500;

const YES =
  'also block a range wider than /24 (IPv6: /48), a public suffix, or a whole registrable domain';
const TARGET =
  'an IP address, a range such as 192.0.2.0/24, or a host name (which includes all names below it)';
const DELIVERY = 'delivery id (msg_…), the webhook-id in the request to the receiver';

interface Selected extends Revealing {
  readonly organization?: string;
  readonly state?: DeliveryState;
}

interface ResendOptions extends ChangedBy {
  readonly failed?: true;
  readonly organization?: string;
  readonly since?: Date;
}

interface BlockOptions extends ChangedBy {
  readonly yes?: true;
}

/** Adds the command `webhooks`. */
export function addCommands(
  program: Command,
  run: Run,
  { output }: CommandSurroundings,
): void {
  const webhooks = program
    .command('webhooks')
    .description('show, resend, and suspend webhook deliveries, and block receivers');
  addReadingCommands(webhooks, run);
  addResendCommand(webhooks, run, output.line);
  change(
    webhooks,
    'suspend',
    'create no deliveries for new submits (webhook.status is "none"), and stop pending deliveries until "resume"',
  )
    .argument(...ORG)
    .action((id: string, by: ChangedBy) =>
      run((db) => suspendWebhooks(db, by, id, true)),
    );
  change(
    webhooks,
    'resume',
    'create deliveries for new submits again; stopped deliveries continue within 5 minutes',
  )
    .argument(...ORG)
    .action((id: string, by: ChangedBy) =>
      run((db) => suspendWebhooks(db, by, id, false)),
    );
  addBlockCommands(webhooks, run);
}

function addReadingCommands(webhooks: Command, run: Run): void {
  const list = webhooks.command('list').description('list deliveries, newest first');
  lists<ReturnType<typeof presented>, Selected>(
    revealing(list, 'URLs')
      .option(...OF_ORG)
      .addOption(
        new Option('--state <STATE>', 'only deliveries in this state').choices(
          DELIVERY_STATES,
        ),
      ),
    run,
    'createdAt',
    async (db, { organization: organizationId = null, state = null, limit, ...by }) => {
      const { deliveries } = await listOrganizationDeliveries(db, {
        organizationId,
        state,
        limit,
      });
      const reading = {
        action: REVEAL,
        organizationId,
        subject: organizationId ?? 'all',
      } as const;
      const data = await revealed(db, deliveries, by, reading);
      return data.map(presented);
    },
    ({ log: _log, ...rest }) => rest,
  );
  revealing(webhooks.command('show'), "the URL and the receiver's responses")
    .description('show a delivery with its attempts')
    .argument('<DELIVERY>', DELIVERY)
    .action((id: string, by: Revealing) => run((db) => reportDelivery(db, by, id)));
}

async function reportDelivery(db: Database, by: Revealing, id: string): Promise<Report> {
  const delivery = await showDelivery(db, id);
  const { organizationId } = delivery;
  const reading = { action: REVEAL, organizationId, subject: id } as const;
  const data = presented(await revealed(db, delivery, by, reading));
  const { log, ...rest } = data;
  return { data, text: sections([fields(rest), 'ATTEMPTS KEPT', table(log)]) };
}

function addResendCommand(
  webhooks: Command,
  run: Run,
  progress: (line: string) => void,
): void {
  change(webhooks, 'resend', 'send deliveries again that have succeeded or failed')
    .argument('[DELIVERY...]', 'delivery ids (msg_…)')
    .option(
      '--failed',
      'resend all deliveries of --organization that failed since --since',
    )
    .option(...OF_ORG)
    .option(
      '--since <WHEN>',
      'only deliveries that failed after this time, such as 24h (ago) or 2026-11-20T00:00Z',
      pastMoment,
    )
    .action((ids: string[], options: ResendOptions, command: Command) => {
      const { failed = false, organization, since } = options;
      const hasIds = ids.length > 0;
      if (failed && organization !== undefined && since !== undefined && !hasIds) {
        return run((db) => resendAllFailed(db, options, organization, since, progress));
      }
      if (!failed && organization === undefined && since === undefined && hasIds) {
        return run((db) => resendNamed(db, options, ids));
      }
      return command.error(
        'error: give delivery ids, or --failed with --organization and --since',
      );
    });
}

const blockTarget = parser(TARGET, (text) => blockOf(text.trim()));

function addBlockCommands(webhooks: Command, run: Run): void {
  change(
    webhooks,
    'block',
    'send nothing to a target, for any organization; pending deliveries to it fail at their next attempt',
  )
    .argument('<TARGET>', TARGET, blockTarget)
    .option('--yes', YES)
    .action((target: string, options: BlockOptions) =>
      run((db) => block(db, options, target)),
    );
  change(
    webhooks,
    'unblock',
    'end a block; to send deliveries that failed because of it, use "webhooks resend"',
  )
    .argument('<TARGET>', TARGET, blockTarget)
    .action((target: string, by: ChangedBy) =>
      run(async (db) => {
        const isChanged = await setBlock(db, by, target, false);
        return { target, outcome: outcomeOf('unblocked', isChanged) };
      }),
    );
  const blocks = webhooks
    .command('blocks')
    .description('list blocked targets, newest first');
  lists(blocks, run, 'since', (db) => listBlocks(db));
}

async function block(
  db: Database,
  { yes, ...by }: BlockOptions,
  target: string,
): Promise<object> {
  const reach = yes ? null : reachOf(target);
  if (reach !== null) return await unconfirmed(db, target, reach);
  const isChanged = await setBlock(db, by, target, true);
  return { target, outcome: outcomeOf('blocked', isChanged) };
}

function outcomeOf(state: 'blocked' | 'unblocked', isChanged: boolean): string {
  if (isChanged) return state;
  return `was ${state} already; nothing was changed`;
}

/**
 * Returns the reason why blocking a target needs `--yes`, such as that the target is a large range
 * of addresses. Returns null if `--yes` is not needed.
 */
function reachOf(target: string): string | null {
  if (target.includes('/')) return reachOfRange(target);
  if (isSharedSuffix(target)) {
    return 'a public suffix: many organizations have names below it';
  }
  if (registrableDomain(target) === target) {
    return 'a registrable domain with all names below it';
  }
  return null;
}

/**
 * `size` is the number of bits in an address. `widest` is the number of prefix bits of the widest
 * range that can be blocked without `--yes`.
 */
const IPV4 = { size: 32, widest: 24 };
const IPV6 = { size: 128, widest: 48 };

function reachOfRange(range: string): string | null {
  const [ip = '', bits] = range.split('/');
  const { size, widest } = isIP(ip) === 6 ? IPV6 : IPV4;
  if (Number(bits) >= widest) return null;
  return `a range of 2^${size - Number(bits)} addresses`;
}

/**
 * Returns a report for a target that was not blocked because `--yes` is missing. The report says
 * how many pending deliveries the block would stop.
 */
async function unconfirmed(db: Database, target: string, reach: string): Promise<Report> {
  const pending = await listPendingHosts(db);
  const hit = pending.filter(({ host }) => isBlocked(withoutBrackets(host), [target]));
  const counts = {
    pendingDeliveries: hit.reduce((sum, { deliveries }) => sum + deliveries, 0),
    hosts: new Set(hit.map(({ host }) => host)).size,
    organizations: new Set(hit.map(({ organizationId }) => organizationId)).size,
  };
  const data = { target, blocked: false, reach, ...counts };
  const parts = [fields(data)];
  if (target.includes('/')) {
    const names = pending.filter(({ host }) => isIP(withoutBrackets(host)) === 0);
    const hosts = new Set(names.map(({ host }) => host)).size;
    parts.push(
      `Not counted, because their addresses are not known here: ${counted(hosts, 'host name')} with pending deliveries.`,
    );
  }
  parts.push('Nothing was blocked: add --yes to block it.');
  return { data, text: parts.join('\n\n'), exitCode: 1 };
}

/** Returns the host of a URL without the brackets around an IPv6 address. */
function withoutBrackets(host: string): string {
  return host.replace(/^\[(.*)\]$/, '$1');
}

const OUTCOMES: Readonly<Record<OperatorOutcome['kind'], string>> = {
  resent: 'pending: the sweep starts it within SWEEP_INTERVAL',
  pending: 'not resent: it is already under way, or its result is not there yet',
  suspended:
    'not resent: webhooks of its organization are suspended ("webhooks resume ORG")',
  unknown: 'unknown; "webhooks list" and "batch show BATCH" show ids',
};

async function resendNamed(
  db: Database,
  by: ChangedBy,
  ids: readonly string[],
): Promise<Report> {
  const data: { readonly delivery: string; readonly outcome: OperatorOutcome['kind'] }[] =
    [];
  for (const delivery of ids) {
    const { kind } = await resendAny(db, by, delivery);
    data.push({ delivery, outcome: kind });
  }
  const rows = data.map(({ delivery, outcome }) => ({
    delivery,
    outcome: OUTCOMES[outcome],
  }));
  const isDone = data.every(({ outcome }) => outcome === 'resent');
  return { data, text: table(rows), exitCode: isDone ? 0 : 1 };
}

const NONE_FAILED = 'Nothing has failed since then: there is nothing to send.';
const STARTED_LATER = 'The workers start them at their next sweeps (SWEEP_INTERVAL).';

/**
 * Resends all failed deliveries of an organization, at most `MAX_RESENDS` per transaction. After an
 * interruption, the command can be repeated, because deliveries that were resent are not in the
 * state `failed` any more.
 */
async function resendAllFailed(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  since: Date,
  progress: (line: string) => void,
): Promise<Report> {
  // The loop leaves out deliveries that fail after this time. Otherwise it might never end, because
  // deliveries to a blocked receiver fail again immediately.
  const until = await query(db, clock);
  let resent = 0;
  for (;;) {
    const selected = { organizationId, since, until, limit: MAX_RESENDS };
    const batch = await resendFailed(db, by, selected);
    resent += batch.resent;
    if (!batch.more) break;
    progress(`${resent} deliveries resent, more to come\n`);
  }
  const data = { organizationId, since, resent };
  const closing = resent === 0 ? NONE_FAILED : STARTED_LATER;
  return { data, text: `${fields(data)}\n\n${closing}` };
}

function presented({ log, ...delivery }: LoggedDelivery) {
  return { ...delivery, lastReason: log.at(-1)?.reason ?? null, log };
}
