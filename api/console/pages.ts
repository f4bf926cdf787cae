import { randomUUID } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Database } from '../../db/connection/client.ts';
import { isId } from '../../db/connection/ids.ts';
import { summarizeBatches } from '../../db/requests/batches.ts';
import { readResults, type ShownItem } from '../../db/requests/envelope.ts';
import { readReceipts } from '../../db/requests/receipts.ts';
import type { CheckResult } from '../../db/words.ts';
import { NO_NPI, readNpi } from '../files/cell.ts';
import { whyNoEmail } from '../files/result-rows.ts';
import { CallFailed, callApi } from '../http/call-api.ts';
import { sendCsv } from '../http/csv.ts';
import { MAX_NPIS } from '../http/submit-body.ts';
import { factsOf } from '../routes/check.ts';
import { againHandler, againOf, failedIn, offerOf } from './again.ts';
import { choicesOf, LINES, type Prices, summaryOf, type Totals } from './check.ts';
import { type Delivery, listedDelivery } from './deliveries.ts';
import { nameIn, shownName } from './name.ts';
import { listed, page } from './page.ts';
import { FACT_COLUMNS, factsByColumn } from './people.ts';
import { remainingTime } from './remaining.ts';
import { fieldsOf } from './session.ts';
import { monthOf, type UsageReport, usageChart } from './usage.ts';

// The pages of the console. They show what the API returns (`callApi`), and the file from which a
// batch was submitted.

interface Batch {
  readonly id: string;
  readonly status: string;
  readonly total: number;
  readonly completed_count: number;
  readonly created_at: string;
}

interface Envelope {
  readonly batch: Batch;
  readonly webhook: { readonly url: string; readonly mode: string } | null;
  readonly custom_data: Readonly<Record<string, unknown>> | null;
  readonly usage: { readonly credits_used: number };
}

export interface Credits {
  readonly balance: number;
  readonly total: number;
  readonly used: number;
}

const RECENT = 5;

async function overview(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const credits = await callApi<Credits>(request, '/api/v1/credits');
  const { balance, total, used } = credits.body;
  const policy = /;q=(\d+)/.exec(String(credits.headers['ratelimit-policy']));
  const usage = await callApi<UsageReport>(request, '/api/v1/usage');
  const recent = await callApi<{ readonly batches: Batch[] }>(
    request,
    `/api/v1/batches?limit=${RECENT}`,
  );
  return page(request, h, 'overview', {
    title: 'Overview',
    credits: { balance, used, held: total - used - balance },
    perMinute: Number(policy?.[1]),
    usage: usageChart(usage.body),
    month: monthOf(usage.body.since.slice(0, 7)),
    batches: await listedBatches(db, request, recent.body.batches),
  });
}

async function batches(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { query, body, problems, older } = await listed<{
    readonly batches: readonly Batch[];
  }>(request, '/api/v1/batches');
  return page(request, h, 'batches', {
    title: 'Batches',
    query,
    problems,
    is: { [query.status]: true },
    batches: await listedBatches(db, request, body?.batches ?? []),
    filtered: Object.values(query).some((value) => value !== ''),
    older: older && `/console/batches?${older}`,
  }).code(body ? 200 : 422);
}

async function batch(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const path = batchPath(request);
  const { body } = await callApi<Envelope>(request, path);
  let deliveries: readonly Delivery[] = [];
  if (body.webhook) {
    const list = await callApi<{ readonly deliveries: Delivery[] }>(
      request,
      `${path}/deliveries?limit=100`,
    );
    deliveries = list.body.deliveries;
  }
  const [shown] = await listedBatches(db, request, [body.batch]);
  const { organizationId } = request.auth.credentials;
  const data = await resultsOf(db, organizationId, body.batch.id);
  const facts = await factsOf(db, organizationId, data.map(npiOf));
  const hidden = [shown?.name && 'name', againOf(body.custom_data) && 'again_of'];
  const receipts = await readReceipts(db, organizationId, body.batch.id);
  const { id, status, total, completed_count } = body.batch;
  const isRunning = status !== 'completed';
  // The page of an upload looks up what failed in all its batches.
  const failed = shown?.uploadId ? null : await failedIn(db, request);
  const rest = { batchIds: [id], left: total - completed_count, isSubmitting: false };
  return page(request, h, 'batch', {
    ...body,
    title: shown?.name || id,
    shown,
    running: isRunning,
    remaining: isRunning && (await remainingTime(db, rest)),
    customData: shownData(body.custom_data, hidden),
    againOf: againOf(body.custom_data),
    again: failed && offerOf(failed.npis.length, failed.requestedType),
    repeatedBy: failed?.repeatedBy,
    data: data.map((result) => ({
      ...result,
      facts: facts.get(result.npi),
      why: whyNoEmail(result),
      receipt: receipts.get(result.request_id),
    })),
    deliveries: deliveries.map(listedDelivery),
  });
}

const SUBMIT = { title: 'Find emails' };

const showSubmit: Lifecycle.Method = (request, h) => page(request, h, 'submit', SUBMIT);

/** Returns the fields of the form of a pasted list. A missing field is empty. */
function pastedForm(request: Request) {
  const form = fieldsOf(request);
  const field = (name: string) => String(form[name] ?? '');
  return {
    npis: field('npis'),
    name: field('name'),
    type: field('type'),
    /** `change` shows the list again. */
    step: field('step'),
    idempotencyKey: field('idempotency_key'),
  };
}

type PastedForm = ReturnType<typeof pastedForm>;

/** Shows what a pasted list holds and what it can cost. */
async function check(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const form = pastedForm(request);
  const { npis, problem } = readPasted(form.npis);
  if (problem !== '') return listPage(request, h, form, problem);
  if (form.step === 'change') return listPage(request, h, form);
  return page(request, h, 'check', await checked(db, request, form, npis));
}

/** Shows the list, and what is wrong with it. */
function listPage(
  request: Request,
  h: ResponseToolkit,
  form: PastedForm,
  problem = '',
): ResponseObject {
  const context = { ...SUBMIT, text: form.npis, problem };
  return page(request, h, 'submit', context).code(problem === '' ? 200 : 422);
}

interface CheckReport {
  readonly data: readonly CheckedNpi[];
  readonly totals: Totals;
  readonly max_credits: Prices;
}

interface CheckedNpi {
  readonly npi: string;
  readonly result: CheckResult;
}

/** Checks a list, and returns what its page shows. */
async function checked(
  db: Database,
  request: Request,
  form: PastedForm,
  npis: readonly string[],
) {
  const different = [...new Set(npis)];
  const { body, caller } = await callApi<CheckReport>(request, '/api/v1/check', {
    method: 'POST',
    body: { npis: different },
  });
  const credits = await callApi<Credits>(request, '/api/v1/credits');
  const facts = await factsOf(db, caller.organizationId, different);
  const duplicate = npis.length - different.length;
  return {
    ...SUBMIT,
    text: form.npis,
    name: form.name,
    // Sending this page twice has the same key, so it creates one batch.
    idempotencyKey: randomUUID(),
    summary: summaryOf({ ...body.totals, duplicate }),
    choices: choicesOf(body.max_credits, credits.body.balance, form.type),
    checked: body.data.map(({ npi, result }) => ({
      npi,
      facts: facts.get(npi),
      what: LINES[result],
    })),
  };
}

async function submit(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const form = pastedForm(request);
  const { npis, problem } = readPasted(form.npis);
  if (problem !== '') return listPage(request, h, form, problem);
  const name = shownName(form.name);
  const body = {
    npis,
    enrichment_email_type: form.type,
    custom_data: name === '' ? undefined : { name },
  };
  const headers = { 'idempotency-key': form.idempotencyKey };
  try {
    const result = await callApi<{ readonly batch_id: string }>(
      request,
      '/api/v1/email/bulk',
      { method: 'POST', body, headers },
    );
    return h.redirect(`/console/batches/${result.body.batch_id}`).code(303);
  } catch (error) {
    if (!(error instanceof CallFailed) || ![402, 422].includes(error.status)) {
      throw error;
    }
    const context = await checked(db, request, form, npis);
    const shown = { ...context, problem: error.text() };
    return page(request, h, 'check', shown).code(error.status);
  }
}

/** Sends the results of a batch as CSV. */
async function results(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { organizationId } = request.app.caller;
  const batchId = String(request.params.batch_id);
  return await sendCsv({ request, h }, `${batchId}.csv`, COLUMNS, async (use) => {
    const items = await resultsOf(db, organizationId, batchId);
    if (items.length === 0)
      throw new CallFailed(404, { detail: 'You have no batch with this id.' });
    const facts = await factsOf(db, organizationId, items.map(npiOf));
    const rows = items.map((item) => ({
      ...item,
      reason: whyNoEmail(item),
      ...factsByColumn(facts.get(item.npi)),
    }));
    await use(rows);
  });
}

/** The number of pasted texts without an NPI that the page names. */
const MAX_NAMED = 5;

/**
 * Reads pasted NPIs as files are read, so `2000000010.0` and a heading are fine.
 * @returns the NPIs, and the problems of the first texts that are not NPIs. Without a problem, it is
 * empty
 */
function readPasted(text: string): {
  readonly npis: readonly string[];
  readonly problem: string;
} {
  const npis: string[] = [];
  const problems: string[] = [];
  for (const cell of text.split(/[\s,;]+/)) {
    const { npi, problem } = readNpi(cell);
    if (npi !== null) npis.push(npi);
    else if (problem !== NO_NPI) problems.push(`${cell} ${problem}.`);
  }
  if (problems.length === 0 && npis.length === 0)
    problems.push('Enter at least one NPI.');
  if (npis.length > MAX_NPIS)
    problems.unshift(
      `These are ${npis.length} NPIs. Upload a file to submit more than 60.`,
    );
  return { npis, problem: problems.slice(0, MAX_NAMED).join(' ') };
}

/** Returns custom data as text, or null if it has only members that the page shows elsewhere. */
function shownData(
  data: Envelope['custom_data'],
  shown: readonly (string | null | undefined)[],
): string | null {
  if (data === null || Object.keys(data).every((name) => shown.includes(name)))
    return null;
  return JSON.stringify(data, null, 2);
}

/** Reads the results of a batch. An unknown id has no results. */
async function resultsOf(db: Database, organizationId: string, batchId: string) {
  // PostgreSQL rejects some texts, such as those with a NUL.
  const ids = isId('bat', batchId) ? [batchId] : [];
  const items: ShownItem[] = [];
  await readResults(db, organizationId, ids, async (part) => {
    items.push(...part);
  });
  return items;
}

const npiOf = ({ npi }: ShownItem) => npi;

/** Returns the path at the API of the batch that a page is about. */
function batchPath(request: Request): string {
  return `/api/v1/batch/${encodeURIComponent(String(request.params.batch_id))}`;
}

/** Returns the rows of a table of batches, which are those of the session's organization. */
async function listedBatches(db: Database, request: Request, batches: readonly Batch[]) {
  const { organizationId } = request.auth.credentials;
  const ids = batches.map(({ id }) => id);
  const summaries = await summarizeBatches(db, organizationId, ids);
  return batches.map((batch) => {
    const summary = summaries.get(batch.id);
    const name = nameIn(summary?.customData ?? null);
    return { ...batch, ...summary, name };
  });
}

const COLUMNS = [
  'npi',
  'status',
  'email',
  'email_type',
  'email_last_validated',
  'replayed',
  'reason',
  ...FACT_COLUMNS,
] as const;

/** Returns the handlers of these pages. */
export function pageHandlers(db: Database) {
  return {
    overview: (request, h) => overview(db, request, h),
    batches: (request, h) => batches(db, request, h),
    batch: (request, h) => batch(db, request, h),
    again: againHandler(db),
    showSubmit,
    check: (request, h) => check(db, request, h),
    submit: (request, h) => submit(db, request, h),
    results: (request, h) => results(db, request, h),
  } satisfies Record<string, Lifecycle.Method>;
}
