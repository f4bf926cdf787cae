import { type Command, Option } from 'commander';
import { findOwner } from '../../db/accounts/keys.ts';
import type { Database } from '../../db/connection/client.ts';
import { listBatches } from '../../db/requests/batches.ts';
import { cancelOpen, countOpen, openOfBatch } from '../../db/requests/cancel.ts';
import { type BatchInspection, inspectBatch } from '../../db/requests/inspect.ts';
import { BATCH_STATUSES, type BatchStatus } from '../../db/words.ts';
import { temporalUi } from '../config/config.ts';
import {
  type Confirmed,
  change,
  confirmed,
  exitCodeOf,
  type Listed,
  lists,
  OF_ORG,
  type Revealing,
  revealed,
  revealing,
} from './arguments.ts';
import { fields, leading, type Part, type Report, type Run, table } from './print.ts';

const BATCH = ['<BATCH>', 'batch id (bat_…)'] as const;

/** The leading columns of a list of batches. */
const LIST_COLUMNS = [
  'batchId',
  'organizationId',
  'status',
  'createdAt',
  'total',
  'apiKeyId',
] as const;

/** Adds the commands `batch list`, `batch show`, and `batch cancel`. */
export function addCommands(program: Command, run: Run): void {
  const batch = program.command('batch').description('list, show, and cancel batches');
  const list = batch.command('list').description('list batches, newest first');
  lists(
    list
      .option(...OF_ORG)
      .addOption(
        new Option(
          '--key <KEY>',
          'only batches that were submitted with this key (key_…)',
        ).conflicts('organization'),
      )
      .addOption(
        new Option('--state <STATE>', 'only batches in this state').choices(
          BATCH_STATUSES,
        ),
      ),
    run,
    'createdAt',
    async (db, { organization, key, state = null, limit }: Selected & Listed) => {
      const keyId = key ?? null;
      const owner = keyId === null ? organization : await findOwner(db, keyId);
      const filter = { status: state, since: null, until: null, npi: null, keyId };
      const page = { after: null, limit };
      return (await listBatches(db, owner ?? null, filter, page)).batches;
    },
    (one) => leading(one, LIST_COLUMNS),
  );
  revealing(
    batch.command('show'),
    "emails, the webhook's URL and its receiver's responses",
  )
    .description(
      'show the requests of a batch, their vendor calls, and its webhook deliveries',
    )
    .argument(...BATCH)
    .action((id: string, by: Revealing) =>
      run(async (db) => {
        const found = await inspectBatch(db, id);
        const { organizationId } = found.batch;
        const reading = { action: 'batch.reveal', organizationId, subject: id } as const;
        const data = presented(await revealed(db, found, by, reading));
        return { data, parts: partsOf(data) };
      }),
    );
  addCancelCommand(batch, run);
}

interface Selected {
  readonly state?: BatchStatus | null;
}

interface CancelOptions extends Confirmed {
  readonly organization?: string;
}

function addCancelCommand(batch: Command, run: Run): void {
  const cancel = change(
    batch,
    'cancel',
    'end the open requests of a batch, or of an organization, as failed, and release their credits',
  );
  confirmed(cancel.argument('[BATCH]', BATCH[1]).option(...OF_ORG), 'cancel them')
    .hook('preAction', () => {
      const isOfBatch = cancel.processedArgs[0] !== undefined;
      const { organization } = cancel.opts<CancelOptions>();
      if (isOfBatch !== (organization !== undefined)) return;
      cancel.error('error: give either a batch or --organization');
    })
    .action((batchId: string | undefined, options: CancelOptions) =>
      run((db) => cancelRequests(db, options, batchId)),
    );
}

async function cancelRequests(
  db: Database,
  options: CancelOptions,
  batchId: string | undefined,
): Promise<Report> {
  const which = await selected(db, batchId, options);
  const open = await countOpen(db, which);
  const canceled = options.yes ? await cancelOpen(db, options, which) : 0;
  const data = { ...which, ...open, canceled };
  const closing = options.yes ? CANCELED : NOT_CANCELED;
  const parts = [fields(data), closing];
  return { data, parts, exitCode: exitCodeOf(options) };
}

const CANCELED =
  'Their credits are available again, and their webhooks are sent within a minute.';
const NOT_CANCELED = 'Nothing was canceled: add --yes to cancel these requests.';

async function selected(
  db: Database,
  batchId: string | undefined,
  { organization: organizationId = '' }: CancelOptions,
) {
  if (batchId === undefined) return { organizationId, batchId: null };
  return await openOfBatch(db, batchId);
}

function presented({ batch, requests, deliveries }: BatchInspection) {
  return {
    ...batch,
    ...linkTo(batch.id),
    requests: requests.map((request) => ({
      ...request,
      durationMs: durationOf(request),
    })),
    deliveries,
  };
}

/**
 * Returns an object with the link to a batch in the Temporal UI. The object is empty if
 * TEMPORAL_UI_URL is not set.
 */
function linkTo(batchId: string): { readonly temporal?: string } {
  const ui = temporalUi();
  if (ui === null) return {};
  return { temporal: `${ui}/${batchId}` };
}

type Request = BatchInspection['requests'][number];

/**
 * Returns the time from submit to result in milliseconds, or null if the request is not settled.
 */
function durationOf({ acceptedAt, settledAt }: Request): number | null {
  if (settledAt === null) return null;
  return settledAt.getTime() - acceptedAt.getTime();
}

const REQUEST_COLUMNS = [
  'id',
  'npi',
  'status',
  'reason',
  'email',
  'creditsUsed',
  'durationMs',
  'emailType',
  'replayed',
] as const;

const ATTEMPT_COLUMNS = [
  'npi',
  'vendor',
  'n',
  'state',
  'reason',
  'startedAt',
  'durationMs',
  'credits',
] as const;

const DELIVERY_ATTEMPT_COLUMNS = ['deliveryId', 'n', 'statusCode', 'reason'] as const;

function partsOf({
  requests,
  deliveries,
  ...batch
}: ReturnType<typeof presented>): Part[] {
  // Requests for the same NPI share a lookup, so the same attempt can belong to several requests.
  // It is printed once.
  const attempts = new Map<string, Request['vendorAttempts'][number] & { npi: string }>();
  for (const { npi, vendorAttempts } of requests) {
    for (const attempt of vendorAttempts) {
      const { lookupId, vendor, n } = attempt;
      attempts.set(`${lookupId} ${vendor} ${n}`, { ...attempt, npi });
    }
  }
  return [
    fields(batch),
    'REQUESTS',
    table(requests, REQUEST_COLUMNS),
    'VENDOR ATTEMPTS',
    table([...attempts.values()], ATTEMPT_COLUMNS),
    'DELIVERIES',
    table(deliveries, ['id', 'requestId', 'state', 'decidedAt']),
    'DELIVERY ATTEMPTS',
    table(
      deliveries.flatMap(({ attempts: log }) =>
        log.map((attempt) => leading(attempt, DELIVERY_ATTEMPT_COLUMNS)),
      ),
    ),
  ];
}
