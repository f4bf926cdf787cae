import { type Command, Option } from 'commander';
import { listBatches } from '../../db/requests/batches.ts';
import { type BatchInspection, inspectBatch } from '../../db/requests/inspect.ts';
import { BATCH_STATUSES, type BatchStatus } from '../../db/words.ts';
import { temporalUi } from '../config/config.ts';
import {
  type Listed,
  lists,
  OF_ORG,
  type Revealing,
  revealed,
  revealing,
} from './arguments.ts';
import { fields, type Run, sections, table } from './print.ts';

/** Adds the commands `batch list` and `batch show`. */
export function addCommands(program: Command, run: Run): void {
  const batch = program.command('batch').description('list and show batches');
  const list = batch.command('list').description('list batches, newest first');
  lists(
    list
      .option(...OF_ORG)
      .addOption(
        new Option('--state <STATE>', 'only batches in this state').choices(
          BATCH_STATUSES,
        ),
      ),
    run,
    'createdAt',
    async (
      db,
      { organization = null, state: status = null, limit }: Selected & Listed,
    ) => {
      const filter = { status, since: null, until: null, npi: null };
      return (await listBatches(db, organization, filter, { after: null, limit }))
        .batches;
    },
  );
  revealing(
    batch.command('show'),
    "emails, the webhook's URL and its receiver's responses",
  )
    .description(
      'show the requests of a batch, their vendor calls, and its webhook deliveries',
    )
    .argument('<BATCH>', 'batch id (bat_…)')
    .action((id: string, by: Revealing) =>
      run(async (db) => {
        const found = await inspectBatch(db, id);
        const { organizationId } = found.batch;
        const reading = { action: 'batch.reveal', organizationId, subject: id } as const;
        const data = presented(await revealed(db, found, by, reading));
        return { data, rows: data.requests, text: textOf(data) };
      }),
    );
}

interface Selected {
  readonly organization?: string | null;
  readonly state?: BatchStatus | null;
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
  'replayed',
  'creditsUsed',
  'emailType',
  'email',
  'reason',
  'durationMs',
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

function textOf({
  requests,
  deliveries,
  ...batch
}: ReturnType<typeof presented>): string {
  // Requests for the same NPI share a lookup, so the same attempt can belong to several requests.
  // It is printed once.
  const attempts = new Map<string, Request['vendorAttempts'][number] & { npi: string }>();
  for (const { npi, vendorAttempts } of requests) {
    for (const attempt of vendorAttempts) {
      const { lookupId, vendor, n } = attempt;
      attempts.set(`${lookupId} ${vendor} ${n}`, { ...attempt, npi });
    }
  }
  return sections([
    fields(batch),
    'REQUESTS',
    table(requests, REQUEST_COLUMNS),
    'VENDOR ATTEMPTS',
    table([...attempts.values()], ATTEMPT_COLUMNS),
    'DELIVERIES',
    table(deliveries, ['id', 'requestId', 'state', 'decidedAt']),
    'DELIVERY ATTEMPTS',
    table(deliveries.flatMap(({ attempts: log }) => log)),
  ]);
}
