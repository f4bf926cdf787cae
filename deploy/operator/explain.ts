import type { Command } from 'commander';
import { buildSubject } from '../../activities/person/subject.ts';
import type { Organization } from '../../activities/vendors/vendor.ts';
import type { Database } from '../../db/connection/client.ts';
import { isId } from '../../db/connection/ids.ts';
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
import { REASONS, type Reason } from '../../db/words.ts';
import { temporalUi } from '../config/config.ts';
import { NPI, parser, type Revealing, revealed, revealing } from './arguments.ts';
import {
  counted,
  fields,
  labeled,
  type Part,
  type Report,
  type Run,
  table,
} from './print.ts';

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
    parts: partsOf(evidence, organization),
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
    return NPI.test(text) ? { npi: text } : null;
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

/** The columns of the table with addresses that wait for a check. */
const WAITING_COLUMNS = [
  'email',
  'source',
  'claimedVerdict',
  'claimedDate',
  'checkAfter',
] as const;

/** The columns of the table with stored addresses. */
const STORED_COLUMNS = [
  'email',
  'emailType',
  'verdict',
  'reason',
  'lastValidatedAt',
  'source',
  'isSuppressed',
] as const;

function partsOf(evidence: Evidence, organization: Organization | null): Part[] {
  const { stored, chapters, otherChecks, suppressions } = evidence;
  const parts: Part[] = [fields(aboutProvider(evidence, organization))];
  if (suppressions.length > 0) {
    parts.push('SUPPRESSED BY', table(suppressions));
  }
  if (chapters.length === 0) {
    parts.push('There was no request for this NPI.');
  }
  for (const chapter of chapters) {
    parts.push(storyOf(chapter));
    if (chapter.checks.length > 0) {
      parts.push(table(candidatesOf(chapter)));
    }
    if (chapter.waiting.length > 0) {
      parts.push('WAITING FOR A CHECK', table(chapter.waiting, WAITING_COLUMNS));
    }
  }
  if (otherChecks.length > 0) {
    parts.push('CHECKED AGAIN WITHOUT A REQUEST', table(otherChecks, CHECK_COLUMNS));
  }
  parts.push('IN THE DIRECTORY NOW', table(stored, STORED_COLUMNS));
  return parts;
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
    'endpoints in nppes': endpoints,
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
  return 'neither the NPI nor an address below';
}

function entity(entityType: number | null): string {
  if (entityType === null) {
    return 'deactivated: NPPES has no other data';
  }
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

/** Lays out a heading of a lookup, and a line for each event in the order of time. */
function storyOf(chapter: Chapter): Part {
  const happenings = happeningsOf(chapter);
  happenings.sort((a, b) => a.at.getTime() - b.at.getTime() || a.rank - b.rank);
  const lines = happenings.map(({ at, what }) => [at.toISOString(), what] as const);
  const heading = [headingOf(chapter), ...linksOf(chapter)].join('\n');
  return (page) => `${heading}\n${labeled(lines)(page)}`;
}

/** Returns a link to the workflow of each request, if TEMPORAL_UI_URL is set. */
function linksOf({ lookup, requests }: Chapter): string[] {
  const ui = temporalUi();
  if (ui === null || !lookup) return [];
  return requests.map(({ id }) => `${ui}/${id}`);
}

function headingOf({ lookup, requests }: Chapter): string {
  if (!lookup) {
    return `REQUEST ${requests[0]?.id}, completed without a lookup`;
  }
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
  const { id, openedAt, closedAt, requestedType, turnOf, turnUntil } = lookup;
  const waited = waitForWorker(openedAt, requests);
  const what = `lookup ${id} begins, for a requested type of ${requestedType}${waited}`;
  happenings.push({ at: openedAt, rank: 1, what });
  if (closedAt) {
    happenings.push({ at: closedAt, rank: 5, what: 'lookup ends' });
  }
  if (turnUntil) {
    happenings.push({ at: turnUntil, rank: 9, what: `end of the turn of ${turnOf}` });
  }
  return happenings;
}

/**
 * Returns a text about how long the first request waited for a worker. The text is empty if it
 * waited for less than a second.
 */
function waitForWorker(openedAt: Date, requests: readonly EvidenceRequest[]): string {
  const times = requests.map(({ acceptedAt }) => acceptedAt.getTime());
  const seconds = (openedAt.getTime() - Math.min(...times)) / 1000;
  if (seconds < 1) return '';
  return `, after ${seconds.toFixed(1)} s of waiting for a worker`;
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
    const { verdict, reason, decidedBy } = decisionOf(lines);
    return {
      email,
      verdict,
      isReturned: requests.some((request) => request.email === email),
      reason,
      namedBy: [...new Set(named)].join(', '),
      decidedBy,
    };
  });
}

/** Returns the decision about an address, derived from its checks. */
function decisionOf(checks: readonly EvidenceCheck[]) {
  // The identity check rejects an address that belongs to another person. Such an address gets no
  // verdict from other checks.
  const last = checks.findLast(({ kind }) => kind === 'verdict' || kind === 'identity');
  if (last === undefined) {
    return { verdict: null, reason: null, decidedBy: null };
  }
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
  const wish = `requested type ${requestedType}, deadline ${deadlineAt.toISOString()}`;
  const accepted = `${id} of ${organizationId} accepted in ${batchId}: ${wish}`;
  const happenings = [{ at: acceptedAt, rank: 0, what: accepted }];
  if (settledAt) happenings.push({ at: settledAt, rank: 6, what: settlement(request) });
  else happenings.push({ at: new Date(), rank: 9, what: openText(id, status) });
  if (erasedAt) {
    happenings.push({
      at: erasedAt,
      rank: 8,
      what: `address erased from the result of ${id}`,
    });
  }
  return happenings;
}

function openText(id: string, status: string): string {
  const text = `${id} is still ${status}`;
  return status === 'accepted'
    ? `${text}: it waits for a worker, or its first step fails (log of the workers)`
    : text;
}

/**
 * Returns the meaning of a request's reason, or null if the reason explains itself. The word in
 * brackets is more exact: `deadline (rate_limit)`.
 */
function meaningOf(reason: string): string | null {
  const word = /\((\w+)\)$/.exec(reason)?.[1] ?? reason;
  return Object.hasOwn(REASONS, word) ? REASONS[word as Reason] : null;
}

function settlement(request: EvidenceRequest): string {
  const { id, status, reason } = request;
  const price = priceOf(request);
  if (status === 'completed') {
    return `${id} completed with ${resultOf(request)}; ${price}`;
  }
  const meaning = meaningOf(reason ?? '');
  const ending = meaning === null ? '' : `, ${meaning}`;
  return `${id} ${status}: ${reason ?? 'no reason noted'}${ending}; ${price}`;
}

function priceOf({ replayed, creditsUsed, isCharged }: EvidenceRequest): string {
  if (replayed) return 'free replay';
  if (creditsUsed === 0) return 'nothing charged';
  const price = counted(creditsUsed, 'credit');
  return isCharged ? `${price} charged` : `${price} not charged, see "doctor"`;
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
  const attemptNumber = n === 1 ? '' : `, attempt ${n}`;
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
  const wait = `it has waited for its rate limit since ${askedAt.toISOString()}`;
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
