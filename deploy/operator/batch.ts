import { type Command, Option } from 'commander';
import { listBatches } from '../../db/requests/batches.ts';
import { type BatchInspection, inspectBatch } from '../../db/requests/inspect.ts';
import { BATCH_STATUSES, type BatchStatus } from '../../db/words.ts';
import { temporalUi } from '../config/config.ts';
import { type Listed, lists, OF_ORG, type Revealing, revealed, revealing } from './arguments.ts';
import { fields, type Run, sections, table } from './print.ts';

/** Adds `batch`. */
export function addCommands(program: Command, run: Run): void {
  const batch = program.command('batch').description('list batches, look into one');
  const list = batch.command('list').description('batches, newest first');
  lists(
    list
      .option(...OF_ORG)
      .addOption(new Option('--state <STATE>', 'only those').choices(BATCH_STATUSES)),
    run,
    'createdAt',
    async (db, { organization = null, state: status = null, limit }: Selected & Listed) => {
      const filter = { status, since: null, until: null, npi: null };
      return (await listBatches(db, organization, filter, { after: null, limit })).batches;
    },
  );
  revealing(batch.command('show'), "emails, the webhook's URL and what its receiver answered")
    .description('its requests, what vendors answered, and its webhook deliveries')
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
  const ui = temporalUi();
  return {
    ...batch,
    ...(ui && { temporal: `${ui}/${batch.id}` }),
    requests: requests.map((request) => ({
      ...request,
      durationMs: request.settledAt && request.settledAt.getTime() - request.acceptedAt.getTime(),
    })),
    deliveries,
  };
}

function textOf({ requests, deliveries, ...batch }: ReturnType<typeof presented>): string {
  // Requests for the same NPI share a lookup and its attempts.
  const attempts = requests.flatMap(({ npi, vendorAttempts }) =>
    vendorAttempts.map(
      (one) => [`${one.lookupId} ${one.vendor} ${one.n}`, { ...one, npi }] as const,
    ),
  );
  return sections([
    fields(batch),
    'REQUESTS',
    table(requests, [
      'id',
      'npi',
      'status',
      'replayed',
      'creditsUsed',
      'emailType',
      'email',
      'reason',
      'durationMs',
    ]),
    'VENDOR ATTEMPTS',
    table(
      [...new Map(attempts).values()],
      ['npi', 'vendor', 'n', 'state', 'reason', 'startedAt', 'durationMs', 'credits'],
    ),
    'DELIVERIES',
    table(deliveries, ['id', 'requestId', 'state', 'decidedAt']),
    'DELIVERY ATTEMPTS',
    table(deliveries.flatMap(({ attempts }) => attempts)),
  ]);
}
