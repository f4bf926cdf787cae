import { readFileSync } from 'node:fs';
import type { ActivityRules } from '../../activities/deps.ts';
import type { Names } from '../../activities/http/names.ts';
import { createMail, type SendNotice } from '../../activities/mail.ts';
import { createAddressPolicy } from '../../activities/webhooks/ip-policy.ts';
import { createPost, type PostSettings } from '../../activities/webhooks/post.ts';
import type { Config } from './config.ts';

const DAY = 86_400_000;

/**
 * Creates the function that sends webhook deliveries, from the configuration.
 * @param limits the time limits of an attempt. Tests set longer ones
 */
export function postOf(
  config: Config,
  names: Names,
  limits: Pick<PostSettings, 'connectMs' | 'totalMs'> = {},
) {
  const { webhookCaFile, webhookOpenCidrs } = config;
  return createPost({
    policy: createAddressPolicy({ openCidrs: webhookOpenCidrs }),
    ca: webhookCaFile === null ? undefined : readFileSync(webhookCaFile, 'utf8'),
    lookup: names.find,
    userAgent: 'npi-email-enrichment/1',
    ...limits,
  });
}

/** Creates the function that sends emails. Returns null if no mail server is configured. */
export function mailOf({ smtpUrl, smtpFrom, siteUrl }: Config): SendNotice | null {
  if (smtpUrl === null || smtpFrom === null || siteUrl === null) {
    return null;
  }
  return createMail({ smtpUrl, from: smtpFrom, publicUrl: siteUrl });
}

/** Returns the rules that activities follow, except those from the sources file. */
export function rulesOf(config: Config): Omit<ActivityRules, 'greylistMs'> {
  const scheduleMs = config.webhookScheduleMs.reduce((sum, ms) => sum + ms);
  return {
    freshnessMs: config.freshnessMs,
    replayMs: config.replayMs,
    lookupTimeoutMs: config.lookupTimeoutMs,
    idempotencyMs: config.idempotencyMs,
    rateWindowMs: config.rateWindowMs,
    missMs: config.missMs,
    policy: `${config.verifyPolicy} ${config.catchAll}`,
    webhookScheduleMs: config.webhookScheduleMs,
    webhookLongestRestMs: config.webhookLongestRestMs,
    retention: {
      // A free replay returns the stored result, so results are kept at least as long as the replay
      // window.
      resultsMs: Math.max(config.resultRetentionMs, config.replayMs),
      evidenceMs: config.evidenceRetentionMs,
      // A delivery contains the custom data of its batch. The data is kept for twice the retry
      // schedule, so that it still exists at the last attempt.
      customDataMs: Math.max(config.customDataRetentionMs, 2 * scheduleMs),
      webhookLogMs: config.webhookLogMs,
      // A request may be charged up to a day after its submit, and is replayed for free during the
      // replay window. Its Idempotency-Key lasts up to 30 days.
      sandboxMs: Math.max(30 * DAY, config.replayMs) + DAY,
    },
    sweep: { startAfterMs: 5000, checkEveryMs: 30_000 },
  };
}
