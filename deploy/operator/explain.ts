import type { Command } from 'commander';
import { buildSubject } from '../../activities/person/subject.ts';
import type { Organization } from '../../activities/vendors/vendor.ts';
import { printable } from '../../api/client/printable.ts';
import type { Database } from '../../db/client.ts';
import { isId } from '../../db/ids.ts';
import {
  type Chapter,
  type Evidence,
  type EvidenceAttempt,
  type EvidenceCheck,
  type EvidenceRequest,
  type EvidenceSlot,
  readEvidence,
} from '../../db/lookups/evidence.ts';
import { readProvider } from '../../db/providers/subject.ts';
import { temporalUi } from '../config/config.ts';
import { parser, type Revealing, revealed, revealing } from './arguments.ts';
import { counted, fields, type Report, type Run, table } from './print.ts';

/** Adds the command `explain`. */
export function addCommands(program: Command, run: Run): void {
  revealing(program.command('explain'), 'addresses')
    .description(
      'show how a request, or the newest requests for an NPI, got the result, with each call and response',
    )
    .argument('<REQUEST_OR_NPI>', 'request id (req_…) or NPI', reference)
    .action((about: Reference, by: Revealing) =>
      run((db) => explainRequests(db, about, by)),
    );
}

async function explainRequests(
  db: Database,
  about: Reference,
  by: Revealing,
): Promise<Report> {
  const held = await readEvidence(db, about);
  const evidence = await revealed(db, held, by, readingOf(about, held));
  // A lookup that starts now would send this employer to the vendors that search by name. It is
  // derived from the current data about the provider.
  const facts = await readProvider(db, held.npi);
  const { organization } = buildSubject(held.npi, facts, 'any');
  const chapters = evidence.chapters.map((chapter) => {
    return { ...chapter, candidates: candidatesOf(chapter) };
  });
  return {
    data: { ...evidence, organization, chapters },
    text: textOf(evidence, organization),
  };
}

/** Returns the entry of the audit log for reading the data unmasked. */
function readingOf(about: Reference, { chapters }: Evidence) {
  const action = 'explain.reveal';
  if ('npi' in about) {
    return { action, organizationId: null, subject: about.npi } as const;
  }
  const organizationId = chapters[0]?.requests[0]?.organizationId ?? null;
  return { action, organizationId, subject: about.requestId } as const;
}

type Reference = Parameters<typeof readEvidence>[1];

const reference = parser(
  'a request id (req_…) or an NPI of 10 digits',
  (text): Reference | null => {
    if (isId('req', text)) return { requestId: text };
    return /^[0-9]{10}$/.test(text) ? { npi: text } : null;
  },
);

/**
 * Describes an employer, for example `Harbor Family Medicine, harborfamily.com (same_phone,
 * confidence 0.7)`.
 */
function employer({ name, domain, source, confidence }: Organization): string {
  const parts = [name, domain].filter((part) => part !== null);
  return `${parts.join(', ')} (${source}, confidence ${Math.round(confidence * 100) / 100})`;
}

/**
 * The columns of the table with the checks that were made while no request was waiting for them.
 */
const CHECK_COLUMNS = ['at', 'email', 'kind', 'source', 'verdict', 'reason'] as const;

/** The columns of the table with stored addresses. */
const STORED_COLUMNS = [
  'email',
  'emailType',
  'verdict',
  'unchecked',
  'reason',
  'lastValidatedAt',
  'source',
  'mayStore',
  'isSuppressed',
] as const;

function textOf(evidence: Evidence, organization: Organization | null): string {
  const { stored, chapters, otherChecks, suppressions } = evidence;
  const parts = [fields(aboutProvider(evidence, organization))];
  if (suppressions.length > 0) parts.push(`SUPPRESSED BY\n${table(suppressions)}`);
  for (const chapter of chapters) {
    parts.push(storyOf(chapter));
    if (chapter.checks.length > 0) parts.push(table(candidatesOf(chapter)));
  }
  if (otherChecks.length > 0) {
    parts.push(`CHECKED AGAIN, no request waiting\n${table(otherChecks, CHECK_COLUMNS)}`);
  }
  parts.push(`IN THE DIRECTORY NOW\n${table(stored, STORED_COLUMNS)}`);
  return parts.join('\n\n');
}

function aboutProvider(evidence: Evidence, organization: Organization | null): object {
  const { npi, provider, endpoints } = evidence;
  const about = {
    npi,
    provider:
      provider === null
        ? 'unknown: not in the NPPES tables'
        : entity(provider.entityType),
    name: provider === null ? null : nameOf(provider),
    'works at': organization === null ? null : employer(organization),
    active: provider?.active,
    'deactivated on': provider?.deactivatedOn,
    'known from': provider?.origin,
    'endpoints in NPPES': endpoints,
    suppressed: suppression(evidence),
  };
  const ui = temporalUi();
  if (ui === null) return about;
  return { ...about, temporal: `${ui}?query=${encodeURIComponent(`Npi = "${npi}"`)}` };
}

function suppression({ isSuppressed, stored }: Evidence): true | string {
  if (isSuppressed) return true;
  const addresses = stored.filter((row) => row.isSuppressed).length;
  if (addresses > 0) return `${addresses} of its addresses`;
  // The text only speaks of the addresses that are printed below it. A suppressed address from a
  // vendor is dropped without a record, so other addresses may be suppressed too.
  return 'not the NPI, and no address below';
}

function entity(entityType: number | null): string {
  if (entityType === null) return 'deactivated: NPPES has no other data';
  return entityType === 1 ? 'person (type 1)' : 'organization (type 2)';
}

function nameOf(provider: NonNullable<Evidence['provider']>): string | null {
  const { organizationName, firstName, middleName, lastName, credential } = provider;
  if (organizationName !== null) return organizationName;
  const parts = [firstName, middleName, lastName, credential];
  const name = parts.filter((part) => part !== null && part !== '').join(' ');
  return name === '' ? null : name;
}

/**
 * An event of a lookup, which is printed on one line. If two events have the same time, the event
 * with the lower rank is printed first, because it is the cause of the other one.
 */
interface Happening {
  readonly at: Date;
  readonly rank: number;
  readonly what: string;
}

/** Returns the text about one lookup: a heading, and a line for each event in the order of time. */
function storyOf(chapter: Chapter): string {
  const happenings = happeningsOf(chapter);
  happenings.sort((a, b) => a.at.getTime() - b.at.getTime() || a.rank - b.rank);
  const lines = happenings.map(
    ({ at, what }) => `${at.toISOString()}  ${printable(what)}`,
  );
  return [headingOf(chapter), ...lines].join('\n');
}

function headingOf({ lookup, requests }: Chapter): string {
  if (!lookup) return `REQUEST ${requests[0]?.id}, answered without a lookup`;
  const others = lookup.requestCount - requests.length;
  if (others <= 0) return `LOOKUP ${lookup.id}`;
  return `LOOKUP ${lookup.id}, shared with ${counted(others, 'more request')}`;
}

function happeningsOf({
  lookup,
  requests,
  attempts,
  checks,
  slots,
}: Chapter): Happening[] {
  const happenings = [
    ...requests.flatMap(requestHappenings),
    ...attempts.flatMap(attemptHappenings),
    ...checks.map(checkHappening),
    ...slots.map(slotHappening),
  ];
  if (!lookup) return happenings;
  const { id, openedAt, closedAt, requestedType } = lookup;
  const what = `lookup ${id} begins, for a requested type of ${requestedType}`;
  happenings.push({ at: openedAt, rank: 1, what });
  if (closedAt) happenings.push({ at: closedAt, rank: 5, what: 'lookup ends' });
  return happenings;
}

/**
 * Returns the addresses that a lookup found, in the order in which they were found. Each row has
 * the sources that returned the address, its verdict (null until our checks end), and the check
 * that decided the verdict.
 */
function candidatesOf({ requests, checks }: Chapter) {
  return [...Map.groupBy(checks, ({ email }) => email)].map(([email, lines]) => {
    const named = lines
      .filter(({ kind }) => kind === 'named')
      .map(({ source }) => source);
    return {
      email,
      namedBy: [...new Set(named)].join(', '),
      ...decisionOf(lines),
      isReturned: requests.some((request) => request.email === email),
    };
  });
}

/** Returns the decision about an address, derived from its checks. */
function decisionOf(checks: readonly EvidenceCheck[]) {
  // The identity check rejects an address that belongs to another person. Such an address gets no
  // verdict from other checks.
  const last = checks.findLast(({ kind }) => kind === 'verdict' || kind === 'identity');
  if (last === undefined) return { verdict: null, reason: null, decidedBy: null };
  const { kind, verdict, reason } = last;
  if (kind === 'identity') {
    return { verdict: 'rejected', reason, decidedBy: 'identity check' };
  }
  const basis = checks.findLast(
    (check) => check.kind !== 'verdict' && check.verdict === verdict,
  );
  return {
    verdict,
    reason,
    decidedBy: basis === undefined ? 'policy' : speakerOf(basis),
  };
}

function requestHappenings(request: EvidenceRequest): Happening[] {
  const { id, organizationId, batchId, requestedType, acceptedAt, deadlineAt } = request;
  const { status, settledAt, erasedAt } = request;
  const wish = `for ${requestedType}, by ${deadlineAt.toISOString()}`;
  const accepted = `${id} of ${organizationId} accepted in ${batchId}: ${wish}`;
  const happenings = [{ at: acceptedAt, rank: 0, what: accepted }];
  if (settledAt) happenings.push({ at: settledAt, rank: 6, what: settlement(request) });
  else happenings.push({ at: new Date(), rank: 9, what: `${id} is still ${status}` });
  if (erasedAt) {
    happenings.push({
      at: erasedAt,
      rank: 8,
      what: `address erased from the result of ${id}`,
    });
  }
  return happenings;
}

function settlement(request: EvidenceRequest): string {
  const { id, status, reason } = request;
  const price = priceOf(request);
  if (status === 'completed') {
    return `${id} completed with ${resultOf(request)}; ${price}`;
  }
  return `${id} ${status}: ${reason ?? 'no reason noted'}; ${price}`;
}

function priceOf({ replayed, creditsUsed }: EvidenceRequest): string {
  if (replayed) return 'free replay';
  return creditsUsed === 0
    ? 'nothing charged'
    : `${counted(creditsUsed, 'credit')} charged`;
}

function resultOf({ email, emailType, emailLastValidatedAt }: EvidenceRequest): string {
  if (email === null) return 'an address that was erased since';
  return `${email} (${emailType}, validated ${emailLastValidatedAt?.toISOString()})`;
}

function attemptHappenings(attempt: EvidenceAttempt): Happening[] {
  const { vendor, n, state, startedAt, endedAt, waitedMs } = attempt;
  const why = inBrackets(attempt.reason);
  if (state === 'skip') {
    return [{ at: startedAt, rank: 2, what: `${vendor} not called${why}` }];
  }
  const attemptNumber = n === 1 ? '' : `, time ${n}`;
  const begin = `${vendor} called${attemptNumber}${afterWait(waitedMs)}`;
  const happenings = [{ at: startedAt, rank: 2, what: begin }];
  if (endedAt) {
    const facts = responseFacts(attempt, endedAt).join(', ');
    happenings.push({
      at: endedAt,
      rank: 3,
      what: `${vendor} returns ${state}${why} ${facts}`,
    });
  }
  return happenings;
}

function responseFacts(attempt: EvidenceAttempt, endedAt: Date): string[] {
  const { state, startedAt, polls, candidates, credits, dollars } = attempt;
  const facts = [`after ${endedAt.getTime() - startedAt.getTime()} ms`];
  if (polls > 0) facts.push(counted(polls, 'poll'));
  if (state === 'found') facts.push(counted(candidates, 'candidate'));
  const price = dollars === null ? '' : ` ($${dollars.toFixed(3)})`;
  facts.push(`${counted(credits, 'credit')} of the vendor${price}`);
  return facts;
}

function inBrackets(reason: string | null): string {
  return reason === null ? '' : ` (${reason})`;
}

/**
 * Returns a text about how long a call waited for the rate limit of its source. The text is empty
 * if the call did not wait.
 */
function afterWait(waitedMs: number | null): string {
  if (waitedMs === null || waitedMs === 0) return '';
  return `, after ${waitedMs} ms of waiting for its rate limit`;
}

function slotHappening({ source, requestId, askedAt, slotAt }: EvidenceSlot): Happening {
  const wait = `it waits for its rate limit since ${askedAt.toISOString()}`;
  return {
    at: slotAt,
    rank: 7,
    what: `${requestId} is expected to call ${source}: ${wait}`,
  };
}

function checkHappening(check: EvidenceCheck): Happening {
  return { at: check.at, rank: 4, what: `${check.email} ${checkText(check)}` };
}

function checkText(check: EvidenceCheck): string {
  const { kind, source, verdict, durationMs, waitedMs } = check;
  const why = inBrackets(check.reason);
  switch (kind) {
    case 'named':
      return `named by ${source} as ${verdict}${why}`;
    case 'identity':
      return `rejected${why}: it belongs to somebody else`;
    case 'verdict':
      return verdict === 'valid' ? `accepted${why}` : `rejected as ${verdict}${why}`;
    case 'local':
    case 'verifier': {
      const time = durationMs === null ? '' : ` in ${durationMs} ms`;
      return `${verdict}${why} by ${speakerOf(check)}${time}${afterWait(waitedMs)}`;
    }
  }
}

function speakerOf({ kind, source }: EvidenceCheck): string {
  if (kind === 'local') return 'our own checks';
  return kind === 'verifier' ? `verifier ${source}` : source;
}
