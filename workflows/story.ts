import { setCurrentDetails } from '@temporalio/workflow';
import type { VendorAnswer } from './messages.ts';

/** What the Temporal UI shows of a lookup while it runs and afterwards. */
export interface Story {
  /** Adds how one source answered. */
  tell(source: string, answer: VendorAnswer): void;
}

export function createStory(): Story {
  const lines: string[] = [];
  return {
    tell(source, { kind, reason }) {
      lines.push(`- **${source}**: ${kind}${reason ? ` (${reason})` : ''}`);
      setCurrentDetails(lines.join('\n'));
    },
  };
}
