import { isIP } from 'node:net';
import { type Command, Option } from 'commander';
import {
  isSharedSuffix,
  registrableDomain,
} from '../../activities/verification/domains.ts';
import { blockOf, isBlocked } from '../../activities/webhooks/ip-policy.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import { listBlocks, listPendingHosts, setBlock } from '../../db/webhooks/blocks.ts';
import {
  type LoggedDelivery,
  listAllDeliveries,
  listOrganizationDeliveries,
  showDelivery,
} from '../../db/webhooks/log.ts';
import { DELIVERY_STATES, type DeliveryState } from '../../db/words.ts';
import {
  change,
  lists,
  OF_ORG,
  ORG,
  parser,
  type Revealing,
  revealed,
  revealing,
} from './arguments.ts';
import {
  type CommandSurroundings,
  counted,
  fields,
  leading,
  type Part,
  type Report,
  type Run,
  table,
} from './print.ts';
import { addResendCommands } from './resends.ts';

const REVEAL = 'webhooks.reveal';

const YES =
  'also block a range wider than /24 (IPv6: /48), a public suffix, or a whole registrable domain';
const TARGET =
  'an IP address, a range such as 192.0.2.0/24, or a host name (which includes all names below it)';
const DELIVERY = 'delivery id (msg_…), the webhook-id in the request to the receiver';

/** The leading columns of a list of deliveries. */
const LIST_COLUMNS = ['id', 'organizationId', 'state', 'attempts', 'lastReason'] as const;

interface Selected extends Revealing {
  readonly organization?: string;
  readonly state?: DeliveryState;
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
    .alias('deliveries')
    .description('show, resend, and suspend webhook deliveries, and block receivers');
  addReadingCommands(webhooks, run);
  addResendCommands(webhooks, run, output.line);
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
      const { deliveries } = await listed(db, organizationId, state, limit);
      const reading = {
        action: REVEAL,
        organizationId,
        subject: organizationId ?? 'all',
      } as const;
      const data = await revealed(db, deliveries, by, reading);
      return data.map(presented);
    },
    ({ log: _log, ...rest }) => leading(rest, LIST_COLUMNS),
  );
  revealing(webhooks.command('show'), "the URL and the receiver's responses")
    .description('show a delivery with its attempts')
    .argument('<DELIVERY>', DELIVERY)
    .action((id: string, by: Revealing) => run((db) => reportDelivery(db, by, id)));
}

async function listed(
  db: Database,
  organizationId: string | null,
  status: DeliveryState | null,
  limit: number,
) {
  if (organizationId === null) {
    return await listAllDeliveries(db, status, limit);
  }
  const filter = { status, since: null, until: null };
  const page = { after: null, limit };
  return await listOrganizationDeliveries(db, organizationId, filter, page);
}

async function reportDelivery(db: Database, by: Revealing, id: string): Promise<Report> {
  const delivery = await showDelivery(db, id);
  const { organizationId } = delivery;
  const reading = { action: REVEAL, organizationId, subject: id } as const;
  const data = presented(await revealed(db, delivery, by, reading));
  const { log, ...rest } = data;
  return { data, parts: [fields(rest), 'ATTEMPTS KEPT', table(log)] };
}

const BLOCKED_ALREADY = 'was blocked already; nothing was changed';
const NOT_BLOCKED = 'was not blocked; nothing was changed';

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
        const wasBlocked = await setBlock(db, by, target, false);
        return { target, outcome: wasBlocked ? 'unblocked' : NOT_BLOCKED };
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
  const isNew = await setBlock(db, by, target, true);
  return { target, outcome: isNew ? 'blocked' : BLOCKED_ALREADY };
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
  const parts: Part[] = [fields(data)];
  if (target.includes('/')) {
    const names = pending.filter(({ host }) => isIP(withoutBrackets(host)) === 0);
    const hosts = new Set(names.map(({ host }) => host)).size;
    if (hosts > 0) {
      parts.push(
        `Not counted, because their addresses are not known here: ${counted(hosts, 'host name')} with pending deliveries.`,
      );
    }
  }
  parts.push('Nothing was blocked: add --yes to block it.');
  return { data, parts, exitCode: 1 };
}

/** Returns the host of a URL without the brackets around an IPv6 address. */
function withoutBrackets(host: string): string {
  return host.replace(/^\[(.*)\]$/, '$1');
}

function presented({ log, ...delivery }: LoggedDelivery) {
  return { ...delivery, lastReason: log.at(-1)?.reason ?? null, log };
}
