import type { CheckResult, RequestedType } from '../../db/words.ts';
import type { ToolCall } from './tool-call.ts';

/** The most NPIs that one call shows, because some assistants cut longer texts. */
const MAX_SHOWN = 300;

interface CheckReport {
  readonly data: readonly { readonly npi: string; readonly result: CheckResult }[];
  readonly totals: Readonly<Record<CheckResult, number>>;
  readonly max_credits: Readonly<Record<RequestedType, number>>;
}

/** Returns what a submit of NPIs would lead to, and the most that it can cost. */
export async function checkNpis(call: ToolCall, npis: readonly string[]) {
  const { data, totals, max_credits } = await readReport(call, npis);
  // The assistant must see the NPIs that are special.
  const first = data.filter(({ result }) => result !== 'lookup');
  const others = data.filter(({ result }) => result === 'lookup');
  return { totals, max_credits, data: [...first, ...others].slice(0, MAX_SHOWN) };
}

/** @throws {CallFailed} if the response is an error */
export async function readReport(
  call: ToolCall,
  npis: readonly string[],
): Promise<CheckReport> {
  return await call.post<CheckReport>('/api/v1/check', { npis });
}
